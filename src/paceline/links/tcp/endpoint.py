"""One rank's connections to the others."""

from __future__ import annotations

import select
import socket as sockets
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from paceline.errors import FrameError
from paceline.links.tcp.acceptor import ACCEPT_S, Acceptor, Handover
from paceline.links.tcp.address import PeerAddress, listen
from paceline.links.tcp.attempts import Attempt, Attempts
from paceline.links.tcp.cuts import LinkCuts
from paceline.links.tcp.handshake import Authenticator, Channel, Peer
from paceline.links.tcp.streams import PlainStream, open_stream
from paceline.links.tcp.way import TcpWay

CONNECT_S = 3 * ACCEPT_S
"""Timeout of an attempt to connect. It is longer than the timeout of the accepting side. So this side never closes
a connection that the accepting side has begun to use."""
_RETRY_S = 0.05
_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET


class TcpEndpoint:
    """Listens at one port from the start. `meet` sets the addresses of the other ranks.

    Either of two ranks may connect to the other, when it first has something to send. If both do so at the same time,
    the connection of the lower rank is used.
    """

    def __init__(
        self,
        rank: int,
        *,
        run_id: bytes,
        bind: str = "127.0.0.1",
        ports: range | None = None,
        encrypt: bool,
        token: bytes = b"",
    ) -> None:
        self.rank = rank
        self.authenticator = Authenticator(str(rank), run_id=run_id, token=token, encrypt=encrypt)
        listener = listen(bind, ports)
        host, port = listener.getsockname()[:2]
        self.address = PeerAddress(host, port, self.authenticator.certificate)
        self.heard_s = 0.0
        """When data last arrived, on the monotonic clock."""
        self.cuts = LinkCuts()
        """Times in which messages to some ranks are held back."""
        self._addresses: Sequence[PeerAddress | None] = ()
        self._ways: dict[int, TcpWay] = {}
        self._streams: dict[int, PlainStream] = {}
        self._generation = 0
        self._has_news = False
        self._lock = threading.Lock()
        self._connecting: set[int] = set()
        self._connected: set[int] = set()
        self._is_closed = threading.Event()
        self._attempts = Attempts(sys.maxsize)
        self._handover = Handover()
        self._watch = select.epoll()
        self._watch.register(self._handover.fileno(), select.EPOLLIN)
        self.acceptor = Acceptor(listener, self.authenticator, self._welcome)

    def meet(
        self,
        addresses: Sequence[PeerAddress | None],
        others: Mapping[str, bytes] | None = None,
        *,
        generation: int = 0,
    ) -> None:
        """Set the addresses of all ranks, including this one. Accept them, and `others` (certificates by name).

        The address is None for a rank that is lost. A new generation of members begins with new connections: messages
        of the one before, complete or not, are not received.
        """
        if generation != self._generation:
            self._disconnect(generation)
        self._addresses = addresses
        for rank in (rank for rank, address in enumerate(addresses) if address is None):
            self.authenticator.dismiss(str(rank))
        ranks = {str(rank): address.certificate for rank, address in enumerate(addresses) if address}
        self.authenticator.admit({**(others or {}), **ranks})
        self.acceptor.start()

    def way(self, rank: int) -> TcpWay:
        """Return the way between this rank and another."""
        way = self._ways.get(rank)
        if way is None:
            way = self._ways[rank] = TcpWay(self, rank, generation=self._generation)
        return way

    def fileno(self) -> int:
        """Return the descriptor. It is readable when there may be news. Watch it after `has_news` returned False."""
        return self._watch.fileno()

    def has_news(self) -> bool:
        """Return whether data has arrived, or more can be sent, since the last call."""
        self.drain()
        has_news, self._has_news = self._has_news, False
        return has_news

    def drain(self) -> bool:
        """Note which connections can be read or written, and take new ones; return whether there is any change."""
        events = self._watch.poll(0)
        for fd, event in events:
            stream = self._streams.get(fd)
            if stream is None:
                self._take_new()
            elif not stream.is_broken:
                stream.is_readable |= bool(event & _READ)
                stream.is_writable |= bool(event & select.EPOLLOUT)
        if events:
            self._has_news = True
        return bool(events)

    def note_received(self) -> None:
        # Another program of this rank may already have received the message that this program waits for.
        self._has_news = True
        self.heard_s = time.monotonic()

    def request(self, rank: int) -> None:
        """Connect to another rank in the background, unless an attempt has begun."""
        address = self._addresses[rank]
        if address is None:
            return
        with self._lock:
            if rank in self._connecting or rank in self._connected:
                return
            self._connecting.add(rank)
        peer = Peer(str(rank), Channel.DATA, generation=self._generation)
        threading.Thread(
            target=self._connect, args=(rank, peer, address), name=f"tcp-connect-{rank}", daemon=True
        ).start()

    def close(self) -> None:
        """Close all connections. The system still delivers data that was sent, if the other side reads it."""
        self._is_closed.set()
        self.acceptor.close()
        self._attempts.close()
        self._handover.close()
        for stream in self._streams.values():
            stream.close()
        self._watch.close()

    # In the program's thread

    def _disconnect(self, generation: int) -> None:
        """Close all connections, and accept connections of this generation only."""
        with self._lock:
            self._generation = generation
            self._connected.clear()
            self._connecting.clear()
        self._attempts.end(lambda _: True)
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._ways.clear()

    def _take_new(self) -> None:
        for peer, socket in self._handover.take():
            if peer.generation != self._generation:
                socket.close()
                continue
            stream = open_stream(socket)
            self._streams[stream.fileno()] = stream
            self._watch.register(stream.fileno(), _EDGES)
            self.way(int(peer.name)).attach(stream)

    # In other threads

    def _welcome(self, peer: Peer, socket: sockets.socket) -> None:
        """Use a connection from another rank, unless a connection exists or this rank's own attempt has precedence."""
        is_open = self._reserve(peer)
        try:
            self.authenticator.answer(socket, is_open=is_open)
        except OSError:
            if is_open:
                self._release(peer)
            is_open = False
        if is_open:
            self._handover.put(peer, socket)
        else:
            socket.close()

    def _reserve(self, peer: Peer) -> bool:
        if peer.channel is not Channel.DATA or peer.is_newcomer or not peer.name.isdecimal():
            return False
        rank = int(peer.name)
        with self._lock:
            is_wanted = rank not in self._connected and not (rank in self._connecting and self.rank < rank)
            # A member that is ahead of this one tries again. One of an earlier generation is not a member any more.
            is_wanted &= peer.generation == self._generation
            if is_wanted:
                self._connected.add(rank)
        return is_wanted

    def _release(self, peer: Peer) -> None:
        with self._lock:
            if peer.generation == self._generation:
                self._connected.discard(int(peer.name))

    def _is_needed(self, rank: int, generation: int) -> bool:
        with self._lock:
            is_open = not self._is_closed.is_set() and generation == self._generation
            return is_open and rank not in self._connected

    def _connect(self, rank: int, peer: Peer, address: PeerAddress) -> None:
        """Retry until there is a connection, made by this rank or by the other one, or the generation ends."""
        while self._is_needed(rank, peer.generation):
            try:
                socket = self._try(peer, address)
            except (OSError, FrameError):
                socket = None  # the waiting rank has a deadline, and its error names the other rank
            if socket is not None:
                with self._lock:
                    if peer.generation == self._generation:
                        self._connected.add(rank)
                self._handover.put(peer, socket)
                return
            self._is_closed.wait(_RETRY_S)

    def _try(self, peer: Peer, address: PeerAddress) -> sockets.socket | None:
        """Connect once. None if the other rank does not want this connection."""
        attempt = Attempt(self.authenticator.open(address, timeout_s=CONNECT_S), address.host)
        is_open = False
        try:
            self._attempts.add(attempt)
            is_open = self.authenticator.connect(
                attempt.socket, address, peer.name, peer.channel, generation=peer.generation
            )
        finally:
            self._attempts.remove(attempt)
            if not is_open:
                attempt.socket.close()
        return attempt.socket if is_open else None


class TcpWays:
    """The ways of one rank over its endpoint."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._endpoint = endpoint

    def out(self, to: int) -> TcpWay:
        return self._endpoint.way(to)

    def into(self, source: int) -> TcpWay:
        return self._endpoint.way(source)
