"""Anonymous memory that several processes map. It has no name, so no other process can open it, and it is always
freed.

All communication through memory uses the methods of `SharedMemory`. Tests can therefore try every order of accesses
(tests/links/explorer.py runs the same code on a memory that switches processes at each access), and a real run can
delay them at random (`links/fuzz.py`).

Ordering guarantees:
- Reads and writes of a word are atomic.
- Writes of a process become visible in the order in which it makes them: first a payload, then the word that
  announces it.
- A process may read one word before its own earlier write of another word is visible. If two processes each write a
  word and then read the other's, they need `fence` between the two; otherwise both may read the old value.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

import torch
from torch import Tensor

from paceline.links.memory import futex

CACHE_LINE = 64


def aligned(nbytes: int, to: int = CACHE_LINE) -> int:
    """Return the next multiple of `to`."""
    return (nbytes + to - 1) // to * to


class SharedMemory:
    """A mapped memory file. The kernel frees it when the last process that maps it has ended or was killed."""

    fence = threading.Lock()
    """`with memory.fence: pass` is a full memory barrier, because acquiring a lock implies one. No other process is
    blocked."""
    move = staticmethod(ctypes.memmove)
    """Copy bytes. Arguments: target address, source address, count. The copy is not atomic."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.map = mmap.mmap(fd, nbytes)
        self.view = memoryview(self.map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    @classmethod
    def create(cls, name: str, nbytes: int) -> SharedMemory:
        """Create memory. `name` only appears in /proc. A page uses memory only after the first access."""
        fd = os.memfd_create(f"paceline-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, max(nbytes, 1))
            return cls(fd, max(nbytes, 1))
        except OSError:  # the mapping needs a second descriptor, which may exceed the limit of open files
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> SharedMemory:
        return cls(fd, os.fstat(fd).st_size)

    def words(self, offset: int, count: int) -> memoryview:
        """Return `count` 64-bit words from `offset` on. Reads and writes of a word are atomic."""
        return self.view[offset : offset + 8 * count].cast("q")

    def wait(self, offset: int, value: int, timeout_s: float) -> None:
        """Sleep until `wake`, for at most `timeout_s`. Return immediately if the word at `offset` is not `value`."""
        futex.wait(self.address + offset, value, timeout_s)

    def wake(self, offset: int) -> None:
        """Wake every process that sleeps on the word at `offset`."""
        futex.wake(self.address + offset)

    def tensor(self, dtype: torch.dtype, offset: int = 0, count: int = -1) -> Tensor:
        """Return a tensor of `count` elements from byte `offset` on; by default, all that fit."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.map, dtype=dtype, offset=offset, count=count)

    def close_fd(self) -> None:
        """Close the descriptor. The mapping stays. Call it when all processes have mapped the memory."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
