"""Cards and switch of an emulated cluster, in memory that its processes share."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence

from paceline.costs.fabric import Fabric
from paceline.costs.transfers import Resource, SharedLinks
from paceline.links.memory.shared import CACHE_LINE, SharedMemory

_NS = 1e9


def nbytes_of(fabric: Fabric | None) -> int:
    """Return the bytes that the cards and the switch need at the end of a memory."""
    return 0 if fabric is None or not fabric.is_shared else 8 * (2 * fabric.count + 1)


def shared_links(fabric: Fabric, hosts: Sequence[int], memory: SharedMemory) -> SharedLinks | None:
    """Return the cards and the switch at the end of this memory. None if they are never a bottleneck."""
    nbytes = nbytes_of(fabric)
    if not nbytes:
        return None
    count = nbytes // 8
    words = memory.words(memory.nbytes - nbytes, count)
    resources = [_SharedResource(memory, words, place) for place in range(count)]
    return SharedLinks(hosts, *fabric.seconds_per_byte(hosts), resources)


class _SharedResource(Resource):
    """A resource with one word of state: the time at which it is free, in nanoseconds of the processes' shared
    clock."""

    __slots__ = ("_memory", "_place", "_words")

    def __init__(self, memory: SharedMemory, words: memoryview, place: int) -> None:
        super().__init__()
        self._memory = memory
        self._words = words
        self._place = place

    def occupy(self, ready_s: float, carry_s: float) -> float:
        # Such a lock belongs to a process. If the process dies, the lock is released.
        fcntl.lockf(self._memory.fd, fcntl.LOCK_EX, 1, self._place * CACHE_LINE)
        try:
            self.free_s = self._words[self._place] / _NS
            start_s = super().occupy(ready_s, carry_s)
            self._words[self._place] = round(self.free_s * _NS)
        finally:
            fcntl.lockf(self._memory.fd, fcntl.LOCK_UN, 1, self._place * CACHE_LINE)
        return start_s
