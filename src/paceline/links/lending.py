"""Memory of a rank from which the others of its host read messages where they lie, instead of from a ring."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from paceline.errors import FrameError
from paceline.links.frames import Header, Place
from paceline.links.memory import SharedMemory
from paceline.links.sending import SendOperation

__all__ = ["LEAST_BYTES", "Lending"]

LEAST_BYTES = 2**16
"""Smaller messages go through the ring: two copies of them cost less than the sender's wait for the reader."""


class Lending:
    """What one rank lends, and what it has mapped of the memory that others lend."""

    def __init__(self, rank: int, memory: Callable[[str, int], SharedMemory]) -> None:
        """`memory` gives the memory of a name to all ranks of the host; the first to ask has it made."""
        self._rank = rank
        self._memory = memory
        self._own: list[SharedMemory] = []
        self._others: dict[tuple[int, int], SharedMemory] = {}

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor in memory that can be lent."""
        own = self._memory(_name(self._rank, len(self._own)), tensor.nbytes)
        self._own.append(own)
        return own.tensor(tensor.dtype, 0, tensor.numel()).view(tensor.shape).copy_(tensor)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that is lent."""
        at = tensor.data_ptr()
        return any(own.address <= at < own.address + own.nbytes for own in self._own)

    def place(self, operation: SendOperation) -> Place | None:
        """Where a message lies in memory that is lent. None: it does not, or is too small to matter."""
        nbytes = operation.tensor.nbytes
        if nbytes >= LEAST_BYTES:
            for number, own in enumerate(self._own):
                offset = operation.address - own.address
                if 0 <= offset <= own.nbytes - nbytes:
                    return Place(number, offset)
        return None

    def find(self, source: int, header: Header) -> tuple[SharedMemory, int]:
        """The memory of another rank, and where in it the payload lies."""
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
