"""Connections of the hub: two for each rank, one for requests and one for notifications."""

from __future__ import annotations

import logging
import select
import socket as sockets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.clusters.hosts.wire import LetterConnection
from paceline.clusters.process.channel import Letter
from paceline.errors import FrameError
from paceline.links.tcp.acceptor import Acceptor, Handover
from paceline.links.tcp.address import PeerAddress, listen
from paceline.links.tcp.handshake import Authenticator, Channel, Peer
from paceline.links.tcp.streams import open_stream

_log = logging.getLogger("paceline")

_READ = select.EPOLLIN | select.EPOLLRDHUP


class Sender(NamedTuple):
    """One connection of a rank."""

    rank: int
    channel: Channel


class Arrival(NamedTuple):
    """Data from a rank: a message, or None for a part of one."""

    sender: Sender
    letter: Letter | None


class HubSocket:
    """Listener on one port. Only admitted processes pass the handshake."""

    def __init__(self, *, run_id: bytes, bind: str, encrypt: bool, token: bytes, ports: range | None) -> None:
        self._authenticator = Authenticator("hub", run_id=run_id, token=token, encrypt=encrypt)
        listener = listen(bind, ports)
        host, port = listener.getsockname()[:2]
        self.address = PeerAddress(host, port, self._authenticator.certificate)
        self._connections: dict[Sender, LetterConnection] = {}
        self._senders: dict[int, Sender] = {}
        """By file descriptor of the connection."""
        self._unread: set[Sender] = set()
        """Connections with more data than one turn reads. TLS may buffer data that the system does not report."""
        self._refused: set[Sender] = set()
        self._disconnected_s: dict[int, float] = {}
        """For each rank without a connection: when the last one ended, on the monotonic clock."""
        self._handover = Handover()
        self._watch = select.epoll()
        self._watch.register(self._handover.fileno(), select.EPOLLIN)
        self.acceptor = Acceptor(listener, self._authenticator, self._welcome)

    def admit(self, certificates: Mapping[str, bytes]) -> None:
        self._authenticator.admit(certificates)
        self.acceptor.start()

    def receive(self, timeout_s: float) -> Iterator[Arrival]:
        """Yield the data that has arrived. Wait up to `timeout_s` if there is none. Each connection has one turn."""
        events = self._watch.poll(0 if self._unread else timeout_s)
        ready, self._unread = self._unread, set()
        for fd, event in events:
            sender = self._senders.get(fd)
            if sender is None:
                self._take_new()
                continue
            if event & ~select.EPOLLOUT:
                ready.add(sender)
            if event & select.EPOLLOUT:
                self._flush(sender)
        for sender in sorted(ready):
            yield from self._read(sender)

    def send(
        self, to: Sender, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()
    ) -> None:
        """Send a message now, or as soon as there is room. It is dropped if the rank is not connected."""
        if connection := self._connections.get(to):
            connection.post(word, values, blobs)
            self._watch_for(to, connection)

    def close(self, *, linger_s: float) -> None:
        """Close all connections. Unsent data is sent for up to `linger_s` seconds."""
        self.acceptor.close()
        self._handover.close()
        self._send_rest(linger_s)
        for connection in self._connections.values():
            connection.close()
        self._watch.close()

    def _send_rest(self, linger_s: float) -> None:
        until_s = time.monotonic() + linger_s
        for connection in self._connections.values():
            self._watch.modify(connection.stream.fileno(), select.EPOLLOUT if connection.has_unsent else 0)
        while any(connection.has_unsent for connection in self._connections.values()):
            for fd, _ in self._watch.poll(max(0.0, until_s - time.monotonic())):
                sender = self._senders[fd]
                left = self._connections[sender]
                left.flush()
                if left.stream.is_broken or not left.has_unsent:
                    self._drop(sender, left)
            if time.monotonic() >= until_s:
                return

    def _take_new(self) -> None:
        for peer, socket in self._handover.take():
            sender = Sender(int(peer.name), peer.channel)
            if old := self._connections.get(sender):
                self._drop(sender, old)
            connection = self._connections[sender] = LetterConnection(open_stream(socket))
            self._senders[connection.stream.fileno()] = sender
            self._disconnected_s.pop(sender.rank, None)
            self._watch.register(connection.stream.fileno(), _READ)
            self._unread.add(sender)  # the selector does not report data that arrived with the handshake

    def _read(self, sender: Sender) -> Iterator[Arrival]:
        connection = self._connections.get(sender)
        if connection is None:
            return
        connection.stream.is_readable = True
        try:
            received, letters = connection.receive()
        except FrameError as error:
            self._refuse(sender, connection, error)
            return
        if connection.stream.is_broken:
            self._drop(sender, connection)
        elif connection.stream.is_readable:
            self._unread.add(sender)
        for letter in letters:
            yield Arrival(sender, letter)
        if received and not letters:
            yield Arrival(sender, None)

    def _flush(self, sender: Sender) -> None:
        if connection := self._connections.get(sender):
            connection.flush()
            self._watch_for(sender, connection)

    def _watch_for(self, sender: Sender, connection: LetterConnection) -> None:
        if connection.stream.is_broken:
            self._drop(sender, connection)
        else:
            events = _READ | (select.EPOLLOUT if connection.has_unsent else 0)
            self._watch.modify(connection.stream.fileno(), events)

    def _drop(self, sender: Sender, connection: LetterConnection) -> None:
        """Remove a connection that has ended. The hub decides whether its rank is lost."""
        del self._connections[sender]
        self._senders = {fd: other for fd, other in self._senders.items() if other != sender}
        connection.close()
        if not any(other.rank == sender.rank for other in self._connections):
            self._disconnected_s[sender.rank] = time.monotonic()

    def disconnected(self, seconds: float) -> list[int]:
        """Return the ranks that have had no connection for this time."""
        now_s = time.monotonic()
        return [rank for rank, ended_s in self._disconnected_s.items() if now_s - ended_s > seconds]

    def _refuse(self, sender: Sender, connection: LetterConnection, error: FrameError) -> None:
        self._drop(sender, connection)
        if sender not in self._refused:
            self._refused.add(sender)
            _log.warning("closed a connection of rank %d to the hub: %s", sender.rank, error)

    # In other threads

    def _welcome(self, peer: Peer, socket: sockets.socket) -> None:
        is_open = peer.name.isdecimal() and not peer.is_newcomer and peer.channel is not Channel.DATA
        try:
            self._authenticator.answer(socket, is_open=is_open)
        except OSError:
            is_open = False
        if is_open:
            self._handover.put(peer, socket)
        else:
            socket.close()
