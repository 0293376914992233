"""One word a rank that others change when there is news for it, so that a rank has one thing to sleep on."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Protocol

from paceline.links import futex
from paceline.links.memory import CACHE_LINE, SharedMemory
from paceline.links.watching import Watch

__all__ = ["Bells", "SocketBells", "Watched"]

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
            self._wake(rank)

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
        self._wait(rank, seen, timeout_s)
        self._words[at] = 0

    def _wake(self, rank: int) -> None:
        futex.wake(self._address + CACHE_LINE * rank)

    def _wait(self, rank: int, seen: int, timeout_s: float) -> None:
        futex.wait(self._address + CACHE_LINE * rank, seen, timeout_s)


class Watched(Protocol):
    """Where news may come from that rings no bell."""

    def fileno(self) -> int:
        """Can be read when there may be news."""
        ...

    def has_news(self) -> bool:
        """Whether there have been any since this was last asked."""
        ...


class SocketBells(Bells):
    """Bells whose sleepers watch sockets as well. All who ring and sleep must be of this kind.

    A sleeper waits at a socket of its own, to which whoever finds it asleep sends a byte. Its name is in no file
    system, and gone with its process. A stranger who sends to it wakes the sleeper for nothing, and does no harm.
    """

    def __init__(self, memory: SharedMemory, offset: int, ranks: int, name: str) -> None:
        super().__init__(memory, offset, ranks)
        self._names = [f"\0paceline-{name}-{rank}" for rank in range(ranks)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._watched: list[Watched] = []
        self._watch = Watch([self._socket.fileno()])

    def watch(self, rank: int, *watched: Watched) -> None:
        """Say which rank sleeps in this process, and what else is to wake it."""
        self._socket.bind(self._names[rank])
        self._watched += watched
        self._watch = Watch([self._socket.fileno(), *(source.fileno() for source in watched)])

    def close(self) -> None:
        self._socket.close()

    def _wake(self, rank: int) -> None:
        with contextlib.suppress(OSError):  # it has ended, or has bytes enough
            self._socket.sendto(b"\0", self._names[rank])

    def _wait(self, rank: int, seen: int, timeout_s: float) -> None:
        for source in self._watched:
            if source.has_news():
                return
        if self.count(rank) == seen and self._watch.wait(timeout_s)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(1)
