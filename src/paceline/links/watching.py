"""Sleeping until one of several descriptors is readable, with timeouts below a millisecond.

Python's own `select.poll` takes milliseconds. It is used on systems other than Linux (untested).
"""

from __future__ import annotations

import ctypes
import math
import select
import sys
from collections.abc import Sequence

_POLLIN = 1


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


if sys.platform == "linux":
    _ppoll = ctypes.CDLL(None).ppoll
    _ppoll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p)

    class Watch:
        """Several descriptors."""

        def __init__(self, fds: Sequence[int]) -> None:
            self._entries = (_PollFd * len(fds))(*[_PollFd(fd, _POLLIN, 0) for fd in fds])

        def wait(self, timeout_s: float) -> list[bool]:
            """Sleep until one is readable, a signal arrives, or the timeout ends. Return which are readable."""
            whole = int(timeout_s)
            limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
            found = _ppoll(ctypes.addressof(self._entries), len(self._entries), ctypes.addressof(limit), None)
            return [found > 0 and entry.revents != 0 for entry in self._entries]

else:

    class Watch:
        """Several descriptors."""

        def __init__(self, fds: Sequence[int]) -> None:
            self._fds = list(fds)
            self._poll = select.poll()
            for fd in fds:
                self._poll.register(fd, select.POLLIN)

        def wait(self, timeout_s: float) -> list[bool]:
            """Sleep until one is readable, a signal arrives, or the timeout ends. Return which are readable."""
            ready = {fd for fd, _ in self._poll.poll(math.ceil(1e3 * timeout_s))}
            return [fd in ready for fd in self._fds]
