"""Child processes that must not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def dies_with_parent(parent: int) -> bool:
    """Make the kernel kill this child when its parent ends. Return False if the parent has already ended.

    The kernel sends the signal when the thread that forked the child ends.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
