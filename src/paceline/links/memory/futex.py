"""Sleeping on a word of shared memory, and waking the sleepers, on Linux.

On other systems there is a polling fallback (untested).
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time

# Little-endian machines only: the kernel compares the first four bytes of our 64-bit words.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_WAIT, _WAKE = 0, 1  # without the PRIVATE flag, because the word is shared between processes
_EVERYONE = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


_number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None

if _number is not None:
    _syscall = ctypes.CDLL(None, use_errno=False).syscall
    _syscall.restype = ctypes.c_long
    _syscall.argtypes = (
        ctypes.c_long,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
    )

    def wait(address: int, seen: int, timeout_s: float) -> None:
        """Sleep until woken, unless the 32-bit word at `address` is no longer `seen`; at most `timeout_s`."""
        whole = int(timeout_s)
        limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
        _syscall(_number, address, _WAIT, seen, ctypes.addressof(limit), None, 0)

    def wake(address: int) -> None:
        """Wake every process that sleeps on the word at `address`."""
        _syscall(_number, address, _WAKE, _EVERYONE, None, None, 0)

else:

    def wait(address: int, seen: int, timeout_s: float) -> None:
        """Sleep briefly. Without futexes the caller polls."""
        time.sleep(min(timeout_s, 0.0005))

    def wake(address: int) -> None:
        """Do nothing: without futexes the sleeping processes poll."""
