"""Message passing between the ranks of one host, over a ring of shared memory for each ordered pair of ranks."""

from __future__ import annotations

from paceline.links.bells import Bells
from paceline.links.memory import SharedMemory
from paceline.links.rings import CHANNEL_BYTES, Reader, Writer

__all__ = ["RingWays"]


class RingWays:
    """One rank's ends of the rings to and from every other rank of its host."""

    def __init__(self, rank: int, ranks: int, memory: SharedMemory, bells: Bells) -> None:
        self._rank = rank
        self._ranks = ranks
        self._memory = memory
        self._bells = bells

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Memory for all rings. Those that no message passes are never touched and cost nothing."""
        return ranks * ranks * CHANNEL_BYTES

    def out(self, to: int) -> Writer:
        return Writer(self._memory, (self._rank * self._ranks + to) * CHANNEL_BYTES, to, self._bells)

    def into(self, source: int) -> Reader:
        offset = (source * self._ranks + self._rank) * CHANNEL_BYTES
        return Reader(self._memory, offset, source, self._bells)
