"""Handshakes in progress. Each has its own thread, and another thread can end it."""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Callable

_JOIN_S = 5.0


class Attempt:
    """A connection that is not authenticated yet."""

    __slots__ = ("_is_ended", "host", "since_s", "socket", "thread")

    def __init__(self, socket: sockets.socket, host: str) -> None:
        self.socket = socket
        self.host = host
        self.since_s = time.monotonic()
        self.thread = threading.current_thread()
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def end(self) -> None:
        """Wake the thread that waits for this connection. That thread closes it."""
        self._is_ended = True
        with contextlib.suppress(OSError):
            # Not `SSLSocket.shutdown`: it would turn the socket into a plain one while the other thread reads it.
            sockets.socket.shutdown(self.socket, sockets.SHUT_RDWR)


class Attempts:
    """At most `most` attempts. The oldest attempt is ended to make room for a new one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._attempts: dict[int, Attempt] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        with self._lock:
            if len(self._attempts) >= self._most:
                oldest = next(iter(self._attempts))
                self._attempts.pop(oldest).end()
            self._attempts[id(attempt)] = attempt
            if self._is_closed:
                attempt.end()

    def remove(self, attempt: Attempt) -> None:
        with self._lock:
            self._attempts.pop(id(attempt), None)

    def end(self, which: Callable[[Attempt], bool]) -> list[Attempt]:
        """End some of the attempts; return them."""
        with self._lock:
            ended = [attempt for attempt in self._attempts.values() if which(attempt)]
        for attempt in ended:
            attempt.end()
        return ended

    def close(self) -> None:
        """End all attempts, including later ones. Return when their threads have closed their sockets."""
        self._is_closed = True
        until_s = time.monotonic() + _JOIN_S
        for attempt in self.end(lambda _: True):
            attempt.thread.join(max(0.0, until_s - time.monotonic()))
