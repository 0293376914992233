"""Sleeping until one of several files can be read, for times shorter than a millisecond too.

Python's own `select.poll` counts in milliseconds. It is used where the system is not Linux (untested).
"""

from __future__ import annotations

import ctypes
import math
import select
import sys
from collections.abc import Sequence

__all__ = ["Watch"]

_POLLIN = 1


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


if sys.platform == "linux":
    _ppoll = ctypes.CDLL(None).ppoll
    _ppoll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p)

    class Watch:
        """Several files, by their descriptors."""

        def __init__(self, fds: Sequence[int]) -> None:
            self._entries = (_PollFd * len(fds))(*[_PollFd(fd, _POLLIN, 0) for fd in fds])

        def wait(self, timeout_s: float) -> list[bool]:
            """Which of them can be read; sleeps until one can, a signal comes, or the time is over."""
            whole = int(timeout_s)
            limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
            found = _ppoll(ctypes.addressof(self._entries), len(self._entries), ctypes.addressof(limit), None)
            return [found > 0 and entry.revents != 0 for entry in self._entries]

else:

    class Watch:
        """Several files, by their descriptors."""

        def __init__(self, fds: Sequence[int]) -> None:
            self._fds = list(fds)
            self._poll = select.poll()
            for fd in fds:
                self._poll.register(fd, select.POLLIN)

        def wait(self, timeout_s: float) -> list[bool]:
            """Which of them can be read; sleeps until one can, a signal comes, or the time is over."""
            ready = {fd for fd, _ in self._poll.poll(math.ceil(1e3 * timeout_s))}
            return [fd in ready for fd in self._fds]
