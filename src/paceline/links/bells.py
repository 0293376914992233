"""One word a rank that others change when there is news for it, so that a rank has one thing to sleep on."""

from __future__ import annotations

import threading

from paceline.links import futex
from paceline.links.memory import CACHE_LINE, SharedMemory

__all__ = ["Bells"]

_COUNT, _ASLEEP = 0, 1
_WORDS = CACHE_LINE // 8


class Bells:
    """The bells of all ranks of one host."""

    def __init__(self, memory: SharedMemory, offset: int, ranks: int) -> None:
        self._words = memory.words(offset, _WORDS * ranks)
        self._address = memory.address + offset
        self._ranks = ranks
        # Taking a lock is a full memory barrier. It stands between telling (the count, or what was counted) and looking
        # whether the other side sleeps; without it both could miss each other.
        self.fence = threading.Lock()

    @staticmethod
    def nbytes(ranks: int) -> int:
        return CACHE_LINE * ranks

    def ring(self, rank: int) -> None:
        """Tell a rank that something changed. Two ringers at once may count as one: it wakes all the same."""
        words, at = self._words, _WORDS * rank
        words[at] = (words[at] + 1) & 0x7FFFFFFF
        with self.fence:
            pass
        if words[at + _ASLEEP]:
            futex.wake(self._address + CACHE_LINE * rank)

    def ring_all(self) -> None:
        for rank in range(self._ranks):
            self.ring(rank)

    def count(self, rank: int) -> int:
        return self._words[_WORDS * rank]

    def sleep(self, rank: int, seen: int, timeout_s: float) -> None:
        """Sleep until the bell rings, unless it has rung since it stood at `seen`."""
        at = _WORDS * rank + _ASLEEP
        self._words[at] = 1
        with self.fence:
            pass
        futex.wait(self._address + CACHE_LINE * rank, seen, timeout_s)
        self._words[at] = 0
