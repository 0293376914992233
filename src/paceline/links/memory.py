"""Anonymous memory that several processes map: it has no name, so nobody else can open it and nothing can leak."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch
from torch import Tensor

__all__ = ["SharedMemory", "aligned"]

CACHE_LINE = 64


def aligned(nbytes: int, to: int = CACHE_LINE) -> int:
    """The next multiple of `to`."""
    return (nbytes + to - 1) // to * to


class SharedMemory:
    """A mapped memory file. The kernel frees it when the last process that maps it is gone, however it went."""

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
