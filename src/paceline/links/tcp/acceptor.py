"""A thread that accepts connections, authenticates them, and hands over the connections of the run's own processes.

An unknown client costs a socket and a small thread for a few seconds, and never any time of the rank's program. The
number of connections that are not authenticated yet is bounded: if there are too many, the oldest is closed. A process
of the run that is closed this way connects again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket as sockets
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from paceline.errors import FrameError
from paceline.links.tcp.attempts import Attempt, Attempts
from paceline.links.tcp.handshake import Authenticator, Peer

_log = logging.getLogger("paceline")

ACCEPT_S = 10.0
"""How long a handshake may take on the accepting side. The connecting side waits longer."""
MOST_PENDING = 64
"""Connections that are not authenticated yet."""
_CHECK_S = 0.5
_PAUSE_S = 0.1  # after the system has refused to accept: too many open files, for example
_LEFT = (ConnectionError, ssl.SSLEOFError)


class Handover:
    """Connections on their way from the threads that made them to the thread that uses them."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Peer, sockets.socket]] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._is_closed = False

    def fileno(self) -> int:
        """Return the descriptor. It is readable when there is a connection to take."""
        return self._fd

    def put(self, peer: Peer, socket: sockets.socket) -> None:
        with self._lock:
            if self._is_closed:
                socket.close()
                return
            self._ready.append((peer, socket))
            os.eventfd_write(self._fd, 1)

    def take(self) -> list[tuple[Peer, sockets.socket]]:
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)
            taken = list(self._ready)
            self._ready.clear()
        return taken

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.close(self._fd)
            for _, socket in self._ready:
                socket.close()
            self._ready.clear()


class Acceptor:
    """Listens at one socket. `welcome` gets each authenticated connection, in a thread of its own."""

    def __init__(
        self,
        listener: sockets.socket,
        authenticator: Authenticator,
        welcome: Callable[[Peer, sockets.socket], None],
    ) -> None:
        self.refused: Counter[tuple[str, str]] = Counter()
        """Number of refused connections, by host and reason."""
        self._listener = listener
        self._authenticator = authenticator
        self._welcome = welcome
        self.pending = Attempts(MOST_PENDING)
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to accept. Processes that have connected before wait in the listener's backlog."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="tcp-acceptor", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop accepting, and end all handshakes."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join(ACCEPT_S)
        self._listener.close()
        os.close(self._wake)
        self.pending.close()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._closing:
            poller.poll(1000 * _CHECK_S if self.pending else None)
            self._end_overdue()
            try:
                socket, address = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # for example, too many open files
                time.sleep(_PAUSE_S)
                continue
            self._begin(socket, str(address[0]))

    def _begin(self, socket: sockets.socket, host: str) -> None:
        """Start a handshake. It never blocks this thread."""
        socket.settimeout(ACCEPT_S)
        attempt = Attempt(socket, host)
        try:
            attempt.socket = self._authenticator.wrap_accepted(socket)
            attempt.thread = threading.Thread(
                target=self._authenticate, args=(attempt,), name="tcp-handshake", daemon=True
            )
            self.pending.add(attempt)
            attempt.thread.start()
        except (OSError, RuntimeError) as error:  # already disconnected, or too many threads
            self.pending.remove(attempt)
            self._refuse(attempt, error)
            attempt.socket.close()

    def _authenticate(self, attempt: Attempt) -> None:
        try:
            peer = self._authenticator.accept(attempt.socket)
        except (OSError, FrameError) as error:
            self._refuse(attempt, error)
            attempt.socket.close()
            return
        finally:
            self.pending.remove(attempt)
        self._welcome(peer, attempt.socket)

    def _end_overdue(self) -> None:
        before_s = time.monotonic() - ACCEPT_S
        self.pending.end(lambda attempt: attempt.since_s < before_s)

    def _refuse(self, attempt: Attempt, error: Exception) -> None:
        if self._closing:  # when a run ends, its ranks may disconnect before they are authenticated
            return
        reason = _reason(error, attempt)
        self.refused[attempt.host, reason] += 1
        is_first = self.refused[attempt.host, reason] == 1
        # A process of the run that was killed, or no longer needs this connection, disconnects without a message.
        if is_first and not isinstance(error, _LEFT):
            _log.warning("refused a connection from %s, which %s", attempt.host, reason)


def _reason(error: Exception, attempt: Attempt) -> str:
    if attempt.is_ended or isinstance(error, TimeoutError):
        return "did not identify itself in time"
    if isinstance(error, _LEFT):
        return "closed the connection before it identified itself"
    if isinstance(error, ssl.SSLError):
        return "did not present a certificate of this run"
    return str(error)
