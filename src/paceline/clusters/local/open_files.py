"""Limit of open files, and a clear error if it is too low for a run."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from paceline.errors import ConfigurationError

_RUN_FILES = 16  # the run's memory and its mappings, the store, and the start of the fork server
_RANK_FILES = 4  # a rank's channel, its journal, and one block of memory with its mapping


@contextlib.contextmanager
def enough_open_files(ranks: int) -> Iterator[None]:
    """Refuse a run that needs more open files than allowed. Raise the same error if they run out in this block."""
    try:
        _check(ranks)
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise _too_few(f"more than {_limit()}", ranks) from error


def _check(ranks: int) -> None:
    # The limit applies to descriptor numbers. Descriptors above the limit, opened before it was lowered, do not
    # count.
    taken = sum(int(fd) < _limit() for fd in os.listdir("/proc/self/fd"))
    needed = taken + _RUN_FILES + _RANK_FILES * ranks
    if needed > _limit():
        raise _too_few(f"at least {needed}", ranks, f" ({taken} are open already)")


def _too_few(bound: str, ranks: int, why: str = "") -> ConfigurationError:
    remedy = "raise it: `ulimit -n 1024` in the shell, or use fewer workers"
    bound = f"must be {bound} for a run of {ranks} ranks{why}"
    return ConfigurationError("the limit of open files (ulimit -n)", bound, _limit(), remedy)


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
