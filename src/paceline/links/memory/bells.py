"""One word of shared memory for each rank. Other ranks write to it to wake the rank, which sleeps on this word only.

A waiting rank sets its word first (`listen`), then checks for news, and sleeps only if there is none. A rank with news
writes the news first, then reads the word. So at least one of the two sees the other's write, and no wake-up is lost.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from paceline.links.memory.shared import CACHE_LINE, SharedMemory
from paceline.links.watching import Watch

_WORDS = CACHE_LINE // 8


class Bells:
    """The bells of all ranks of one host. A word is 1 while its rank listens, and 0 after the bell has rung."""

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
        """Wake a rank, if it listens."""
        with self.fence:  # the news must be visible before the word is read
            pass
        if self._words[_WORDS * rank]:
            self._words[_WORDS * rank] = 0
            self._wake(rank)

    def ring_all(self) -> None:
        for rank in range(self._ranks):
            self.ring(rank)

    def listen(self, rank: int) -> None:
        """Enable wake-ups: from now on a ring ends the next `sleep` of this rank. Check for earlier news
        afterwards."""
        self._words[_WORDS * rank] = 1
        with self.fence:
            pass

    def ignore(self, rank: int) -> None:
        """Disable wake-ups: this rank continues without sleeping."""
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
    """A source of news, such as a socket, that does not ring a bell."""

    def fileno(self) -> int:
        """Return the descriptor. It is readable when there may be news."""
        ...

    def has_news(self) -> bool:
        """Return whether there is news since the last call."""
        ...


class SocketBells(Bells):
    """Bells for ranks that also wait for sockets. All ranks of the host must use this class.

    A sleeping rank waits at its own datagram socket. A rank that rings its bell sends a byte to that socket. The
    socket's name is abstract: it is in no file system, and is released when the process ends. Data from unrelated
    processes only causes spurious wake-ups.
    """

    def __init__(self, memory: SharedMemory, offset: int, ranks: int, name: str) -> None:
        super().__init__(memory, offset, ranks)
        self._names = [f"\0paceline-{name}-{rank}" for rank in range(ranks)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._watched: list[Watched] = []
        self._watch = Watch([self._socket.fileno()])

    def watch(self, rank: int, *watched: Watched) -> None:
        """Set the rank that sleeps in this process, and the other sources that wake it."""
        self._socket.bind(self._names[rank])
        self._watched += watched
        self._watch = Watch([self._socket.fileno(), *(source.fileno() for source in watched)])

    def close(self) -> None:
        self._socket.close()

    def _wake(self, rank: int) -> None:
        with contextlib.suppress(OSError):  # the rank has ended, or its socket buffer is full
            self._socket.sendto(b"\0", self._names[rank])

    def _wait(self, rank: int, timeout_s: float) -> None:
        for source in self._watched:
            if source.has_news():
                return
        if not self._is_heard(rank) and self._watch.wait(timeout_s)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(1)
