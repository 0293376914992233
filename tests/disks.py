"""Full disks, for tests of the files that remain."""

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(limit):
    """Simulate a full disk: a write that makes a file longer than this fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
