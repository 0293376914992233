"""Torch in a process that was forked: its threads are not there, and an operation that waits for them never ends."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

__all__ = ["do_without_lost_threads"]

_log = logging.getLogger("paceline")

_STAT_FLAGS = 6  # the flags' place in /proc/self/stat, after the name of the process
_FORKED_WITHOUT_EXEC = 0x40  # the kernel's PF_FORKNOEXEC


def do_without_lost_threads() -> None:
    """Let torch compute in one thread if this process was forked, as a DataLoader's workers do.

    Whether the parent had started torch's threads before cannot be known.
    """
    if _was_forked() and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        _log.warning(
            "this process was forked: torch computes in one thread here, because its others were lost"
        )


def _was_forked() -> bool:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, where no run has processes of its own
        return False
    return bool(int(fields[_STAT_FLAGS]) & _FORKED_WITHOUT_EXEC)
