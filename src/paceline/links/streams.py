"""Connections of their own for large payloads, which go from where they lie to where they belong without a copy.

Only where nothing is encrypted. A stream goes one way. The rank that has something to send offers it: it tells the
other, who has been let in by the gate, at which port it listens, and a ticket that nobody else knows. The other comes
and shows the ticket; who shows none that is known is turned away. What a stream carries are the payloads of messages
whose headers come by the usual way, one after the other, and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import socket as sockets
import struct
import time
from collections.abc import Callable, Set

from paceline.errors import FrameError

__all__ = ["OFFER_BYTES", "Stream", "Streams"]

_TICKET_BYTES = 32
_OFFER = struct.Struct(f"<H{_TICKET_BYTES}s")  # port, ticket
OFFER_BYTES = _OFFER.size
_CONNECT_S = 5.0
_PATIENCE_S = 10.0  # how long a caller may take to show a ticket
_MOST_CALLERS = 64  # at a time, that have not shown a ticket
_BACKLOG = 1024  # all ranks of a run may come at once
_ON_READABLE = select.EPOLLIN | select.EPOLLONESHOT
_ON_WRITABLE = select.EPOLLOUT | select.EPOLLONESHOT


class Stream:
    """One connection. What it cannot take or give at once wakes its rank when it can.

    One that has broken takes and gives nothing any more: that its rank is lost is noticed elsewhere, as with any way.
    """

    __slots__ = ("_socket", "_watch")

    def __init__(self, watch: select.epoll) -> None:
        self._watch = watch
        self._socket: sockets.socket | None = None

    def open(self, socket: sockets.socket) -> None:
        socket.setblocking(False)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        self._watch.register(socket.fileno(), 0)
        self._socket = socket

    def write(self, data: memoryview) -> int:
        """How many bytes it has taken: none if there is no room, or the other has not come yet, or is gone."""
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data)
        except BlockingIOError:
            self._watch.modify(self._socket.fileno(), _ON_WRITABLE)
        except OSError:
            self.close()
        return 0

    def read_into(self, place: memoryview) -> int:
        """How many bytes it has given: none if nothing has come, or the other is gone."""
        if self._socket is None:
            return 0
        try:
            if count := self._socket.recv_into(place):
                return count
            self.close()
        except BlockingIOError:
            self._watch.modify(self._socket.fileno(), _ON_READABLE)
        except OSError:
            self.close()
        return 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Streams:
    """Those that one rank offers and those that it has taken up."""

    def __init__(
        self,
        host: str,
        ports: range | None,
        watch: select.epoll,
        refuse: Callable[[str, str], None],
    ) -> None:
        """It listens at `host`, as the gate's socket does. `watch` is what the rank sleeps on."""
        self._host = host
        self._ports = ports
        self._watch = watch
        self._refuse = refuse
        self._listener: sockets.socket | None = None
        self._offered: dict[bytes, Stream] = {}
        self._callers: dict[int, _Caller] = {}
        self._streams: list[Stream] = []

    def offer(self) -> tuple[Stream, bytes] | None:
        """A stream to write to, and what to tell the one who is to read from it. None: no port is free for it."""
        if self._listener is None:
            self._listener = _listen(self._host, self._ports)
            if self._listener is None:
                return None
            self._watch.register(self._listener.fileno(), select.EPOLLIN)
        ticket, stream = secrets.token_bytes(_TICKET_BYTES), Stream(self._watch)
        self._offered[ticket] = stream
        self._streams.append(stream)
        return stream, _OFFER.pack(self._listener.getsockname()[1], ticket)

    def take_up(self, host: str, offer: memoryview) -> Stream:
        """The stream to read from that a rank on this host has offered."""
        port, ticket = _OFFER.unpack(offer)
        stream = Stream(self._watch)
        try:
            socket = sockets.create_connection((host, port), timeout=_CONNECT_S)
            socket.sendall(ticket)
        except OSError:
            raise FrameError("an offer of a stream to which there is no way") from None
        stream.open(socket)
        self._streams.append(stream)
        return stream

    def serve(self, signs: Set[int]) -> None:
        """Let those in who have come for what was offered. `signs`: the files at which there is something new."""
        for fd in signs & self._callers.keys():
            self._hear(self._callers[fd])
        if self._listener is not None and self._listener.fileno() in signs:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._receive(*self._listener.accept())

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for caller in self._callers.values():
            caller.socket.close()
        if self._listener is not None:
            self._listener.close()

    def _receive(self, socket: sockets.socket, address: tuple[str, int]) -> None:
        now_s = time.monotonic()
        for caller in list(self._callers.values()):
            if now_s > caller.came_s + _PATIENCE_S or len(self._callers) >= _MOST_CALLERS:
                self._turn_away(caller)
        socket.setblocking(False)
        self._callers[socket.fileno()] = _Caller(socket, str(address[0]), now_s)
        self._watch.register(socket.fileno(), select.EPOLLIN)

    def _hear(self, caller: _Caller) -> None:
        try:
            said = caller.socket.recv(_TICKET_BYTES - len(caller.said))
        except BlockingIOError:
            return
        except OSError:
            said = b""
        caller.said += said
        if said and len(caller.said) < _TICKET_BYTES:
            return
        stream = self._offered.pop(bytes(caller.said), None)
        if stream is None:
            self._turn_away(caller)
            return
        self._forget(caller)
        stream.open(caller.socket)

    def _turn_away(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.socket.close()
        self._refuse(caller.host, "a call for a stream, without its ticket")

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller.socket.fileno()]
        self._watch.unregister(caller.socket.fileno())


def _listen(host: str, ports: range | None) -> sockets.socket | None:
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    for port in ports if ports is not None else (0,):
        try:
            socket = sockets.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            socket.setblocking(False)
            return socket
    return None


class _Caller:
    """One who has come and not said enough yet."""

    __slots__ = ("came_s", "host", "said", "socket")

    def __init__(self, socket: sockets.socket, host: str, came_s: float) -> None:
        self.socket = socket
        self.host = host
        self.came_s = came_s
        self.said = bytearray()
