"""Message passing between the ranks of one host, over a ring of shared memory for each ordered pair of ranks."""

from __future__ import annotations

from paceline.links.memory.bells import Bells
from paceline.links.memory.lending import Lending
from paceline.links.memory.rings import CHANNEL_BYTES, Reader, Writer
from paceline.links.memory.shared import SharedMemory


class RingWays:
    """One rank's ends of the rings to and from every other rank of its host."""

    def __init__(
        self, rank: int, ranks: int, memory: SharedMemory, bells: Bells, lending: Lending | None = None
    ) -> None:
        """Open no ring yet. Without `lending` every message goes through a ring."""
        self._rank = rank
        self._ranks = ranks
        self._memory = memory
        self._bells = bells
        self._lending = lending

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Return the memory size of all rings. Unused rings are never touched and need no memory."""
        return ranks * ranks * CHANNEL_BYTES

    def out(self, to: int) -> Writer:
        offset = (self._rank * self._ranks + to) * CHANNEL_BYTES
        return Writer(self._memory, offset, to, self._bells, self._lending)

    def into(self, source: int) -> Reader:
        offset = (source * self._ranks + self._rank) * CHANNEL_BYTES
        return Reader(self._memory, offset, source, self._bells, self._lending)
