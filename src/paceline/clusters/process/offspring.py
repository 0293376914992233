"""Processes that a process forks for itself, and that must not outlive it."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["PR_SET_PDEATHSIG", "dies_with_parent"]

PR_SET_PDEATHSIG = 1


def dies_with_parent(parent: int) -> bool:
    """In a child: be killed when its parent ends, however that ends. False where the parent has ended already.

    The kernel sends the signal when the thread ends that forked the child.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
