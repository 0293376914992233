"""Anonymous memory that several processes map: it has no name, so nobody else can open it and nothing can leak.

Whatever one process tells another through memory goes through the methods of `SharedMemory`, and nothing else does:
that is what makes it possible to try every order in which processes can touch it (tests/links/explorer.py runs the same
code on a memory that hands over at each of these points), and to disturb them in a real run (`links/fuzz.py`).

What orders them:
- A word is read and written in one piece.
- What a process writes becomes visible in the order in which it writes: a payload, then the word that announces it.
- A process may read one word before its own earlier write of another has become visible. Two processes that each write
  a word and then read the other's need `fence` in between, or both may read the old value.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

import torch
from torch import Tensor

from paceline.links import futex

__all__ = ["SharedMemory", "aligned"]

CACHE_LINE = 64


def aligned(nbytes: int, to: int = CACHE_LINE) -> int:
    """The next multiple of `to`."""
    return (nbytes + to - 1) // to * to


class SharedMemory:
    """A mapped memory file. The kernel frees it when the last process that maps it is gone, however it went."""

    fence = threading.Lock()
    """`with memory.fence: pass` is a full barrier: taking a lock is one. It excludes nobody in another process."""
    move = staticmethod(ctypes.memmove)
    """Copy bytes: to which address, from which, how many. Not in one piece: others may see half of it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.map = mmap.mmap(fd, nbytes)
        self.view = memoryview(self.map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    @classmethod
    def create(cls, name: str, nbytes: int) -> SharedMemory:
        """`name` is for people who look at /proc; it opens nothing. Pages cost memory only once they are touched."""
        fd = os.memfd_create(f"paceline-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, max(nbytes, 1))
            return cls(fd, max(nbytes, 1))
        except OSError:  # the mapping needs a second descriptor, and there may be none left
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> SharedMemory:
        return cls(fd, os.fstat(fd).st_size)

    def words(self, offset: int, count: int) -> memoryview:
        """`count` 64-bit words from `offset` on, each read and written in one piece."""
        return self.view[offset : offset + 8 * count].cast("q")

    def wait(self, offset: int, value: int, timeout_s: float) -> None:
        """Sleep until `wake`, unless the word at `offset` has another value; at most so long."""
        futex.wait(self.address + offset, value, timeout_s)

    def wake(self, offset: int) -> None:
        """Wake every process that sleeps on the word at `offset`."""
        futex.wake(self.address + offset)

    def tensor(self, dtype: torch.dtype, offset: int = 0, count: int = -1) -> Tensor:
        """Elements from `offset` (bytes) on; all that fit by default."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.map, dtype=dtype, offset=offset, count=count)

    def close_fd(self) -> None:
        """The mapping stays; the descriptor is not needed once everybody has mapped it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
