"""Memory of a rank that other ranks of its host can read, so that messages need not be copied into a ring."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from paceline.errors import FrameError
from paceline.links.frames import Header, Place
from paceline.links.memory.shared import SharedMemory
from paceline.links.sending import SendOperation

LEAST_BYTES = 2**16
"""Minimum size of a lent message. Smaller messages go through the ring, because two copies cost less than waiting
for the reader."""


class Lending:
    """Memory that one rank lends, and its mappings of memory that other ranks lend."""

    def __init__(self, rank: int, memory: Callable[[str, int], SharedMemory]) -> None:
        """`memory` returns the memory of a name.

        All ranks of the host get the same memory. The first call creates it.
        """
        self._rank = rank
        self._memory = memory
        self._own: list[SharedMemory] = []
        self._others: dict[tuple[int, int], SharedMemory] = {}

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in memory that can be lent."""
        own = self._memory(_name(self._rank, len(self._own)), tensor.nbytes)
        self._own.append(own)
        return own.tensor(tensor.dtype, 0, tensor.numel()).view(tensor.shape).copy_(tensor)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in lent memory."""
        at = tensor.data_ptr()
        return any(own.address <= at < own.address + own.nbytes for own in self._own)

    def place(self, operation: SendOperation) -> Place | None:
        """Return the location of a message in lent memory. None if it is not in lent memory, or too small."""
        nbytes = operation.tensor.nbytes
        if nbytes >= LEAST_BYTES:
            for number, own in enumerate(self._own):
                offset = operation.address - own.address
                if 0 <= offset <= own.nbytes - nbytes:
                    return Place(number, offset)
        return None

    def find(self, source: int, header: Header) -> tuple[SharedMemory, int]:
        """Return the lent memory of another rank, and the offset of the payload in it."""
        assert header.lent is not None
        number, offset = header.lent
        memory = self._others.get((source, number))
        if memory is None:
            memory = self._others[source, number] = self._memory(_name(source, number), 0)
        if offset + header.nbytes > memory.nbytes:
            raise FrameError(f"not a frame: {header.nbytes} bytes at {offset} of {memory.nbytes} lent")
        return memory, offset


def _name(rank: int, number: int) -> str:
    return f"lent-{rank}-{number}"
