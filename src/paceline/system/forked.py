"""Torch in a forked process: its threads do not exist there, and an operation that waits for them never ends."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

_log = logging.getLogger("paceline")

_STAT_FLAGS = 6  # index of the flags in /proc/self/stat, after the name of the process
_FORKED_WITHOUT_EXEC = 0x40  # the kernel's PF_FORKNOEXEC


def limit_threads_after_fork() -> None:
    """Limit torch to one thread if this process was forked, as DataLoader workers do.

    It is impossible to know whether the parent had started torch's threads before.
    """
    if _was_forked() and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        _log.warning(
            "this process was forked: torch uses one thread here, because its other threads were lost"
        )


def _was_forked() -> bool:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, where no run starts processes
        return False
    return bool(int(fields[_STAT_FLAGS]) & _FORKED_WITHOUT_EXEC)
