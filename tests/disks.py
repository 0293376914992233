"""Disks that are full, for tests of what is left then."""

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(limit):
    """As a full disk does: a write that makes a file longer than this fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
