"""One word a rank by which others wake it when there is news for it, so that a rank has one thing to sleep on.

Who waits says so first (`listen`), then looks for news, and sleeps only if there is none. Who has news writes it
first, then looks whether anybody listens. So one of the two always sees the other, and no news is missed.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from paceline.links.memory import CACHE_LINE, SharedMemory
from paceline.links.watching import Watch

__all__ = ["Bells", "SocketBells", "Watched"]

_WORDS = CACHE_LINE // 8


class Bells:
    """The bells of all ranks of one host. A bell's word is 1 while its rank listens, and 0 once it has been rung."""

    def __init__(self, memory: SharedMemory, offset: int, ranks: int) -> None:
        self._memory = memory
        self._words = memory.words(offset, _WORDS * ranks)
        self._offset = offset
        self._ranks = ranks
        self.fence = memory.fence

    @staticmethod
    def nbytes(ranks: int) -> int:
        return CACHE_LINE * ranks

    def ring(self, rank: int) -> None:
        """Tell a rank that something has changed."""
        with self.fence:  # the news first, then the look whether anybody listens
            pass
        if self._words[_WORDS * rank]:
            self._words[_WORDS * rank] = 0
            self._wake(rank)

    def ring_all(self) -> None:
        for rank in range(self._ranks):
            self.ring(rank)

    def listen(self, rank: int) -> None:
        """From now on a ring ends the next `sleep` of this rank. What came before is to be looked for after this."""
        self._words[_WORDS * rank] = 1
        with self.fence:
            pass

    def ignore(self, rank: int) -> None:
        """This rank goes on without sleeping."""
        self._words[_WORDS * rank] = 0

    def sleep(self, rank: int, timeout_s: float) -> None:
        """Sleep until the bell rings, unless it has rung since `listen`."""
        self._wait(rank, timeout_s)
        self._words[_WORDS * rank] = 0

    def _is_heard(self, rank: int) -> bool:
        return not self._words[_WORDS * rank]

    def _wake(self, rank: int) -> None:
        self._memory.wake(self._offset + CACHE_LINE * rank)

    def _wait(self, rank: int, timeout_s: float) -> None:
        self._memory.wait(self._offset + CACHE_LINE * rank, 1, timeout_s)


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

    def _wait(self, rank: int, timeout_s: float) -> None:
        for source in self._watched:
            if source.has_news():
                return
        if not self._is_heard(rank) and self._watch.wait(timeout_s)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(1)
