"""Message passing between ranks that share no memory: TCP, by ZeroMQ.

Each rank has one socket that takes what comes, from the run's other ranks and nobody else, and one for each rank that
it sends to. Everything that comes is checked before anything is done with it; what does not check is dropped, and
logged once. Nothing is ever unpickled.
"""

from __future__ import annotations

import logging
import select
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import zmq

from paceline.errors import FrameError
from paceline.links.chunks import CHUNK_BYTES, RUN_ID_BYTES
from paceline.links.credentials import Gate
from paceline.links.seats import Seat, bind_socket
from paceline.links.streams import Stream, Streams
from paceline.links.tcp_way import TcpWay

__all__ = ["Seat", "TcpEndpoint", "TcpWays", "bind_socket"]

_log = logging.getLogger("paceline")

_SEAL_BYTES = 64  # what encryption adds to a part: 33, and some room
_BACKLOG = 1024  # all ranks of a run may connect to one at once
_EVENTS, _POLLIN, _NOW = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


class TcpEndpoint:
    """One rank's sockets. It has a seat from the start; who may talk to it is said by `meet`."""

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
        assert len(run_id) == RUN_ID_BYTES
        self.rank = rank
        self.run_id = run_id
        self.refused: Counter[tuple[str, str]] = Counter()
        """How often something was refused, by the sender and the reason."""
        self.heard_s = 0.0
        """When something last came, on the monotonic clock."""
        self.streams: Streams | None = None
        """By which large payloads go, where nothing is encrypted."""
        self._watch = select.epoll()
        self._seats: Sequence[Seat] = ()
        self._ways: dict[int, TcpWay] = {}
        self._by_name: dict[str, TcpWay] = {}
        self._sockets: list[zmq.Socket[bytes]] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gate = Gate(self.context, encrypt=encrypt, token=token)
        self._inbox = self._socket(zmq.PULL)
        try:
            self.gate.guard(self._inbox)
            self.seat = Seat(bind_socket(self._inbox, bind, ports), self.gate.keys.public)
        except BaseException:
            self.close()
            raise
        self._sign = int(self._inbox.get(zmq.FD))
        self._watch.register(self._sign, select.EPOLLIN)
        self._empty = False  # whether all was taken: then there is more only if ZeroMQ signals it
        self._has_news = False  # since its rank last went to sleep
        if not encrypt:
            self.streams = Streams(_host(self.seat.address), ports, self._watch, self._refuse)

    def meet(self, seats: Sequence[Seat], others: Mapping[str, bytes] | None = None) -> None:
        """Hear where every rank is, this one included, and whom else to let in: names and their public keys."""
        self._seats = seats
        ranks = {str(rank): seat.public_key for rank, seat in enumerate(seats)}
        self.gate.admit({**(others or {}), **ranks})

    def way(self, rank: int) -> TcpWay:
        """The way between this rank and another."""
        way = self._ways.get(rank)
        if way is None:
            way = self._ways[rank] = self._by_name[str(rank)] = TcpWay(self, rank)
        return way

    def fileno(self) -> int:
        """To be watched by one who sleeps, and has found that there is no news."""
        return self._watch.fileno()

    def has_news(self) -> bool:
        """Whether anything has come since this was last asked, whoever has taken it meanwhile."""
        self.drain()
        has_news, self._has_news = self._has_news, False
        return has_news

    def drain(self) -> bool:
        """Take all that has come and give it to its ways; tell whether there was anything."""
        # Asking the system is three times as quick as asking ZeroMQ. But ZeroMQ signals only what is new: see `_empty`.
        signs = {fd for fd, _ in self._watch.poll(0)}
        came = bool(signs - {self._sign})
        if self.streams is not None and came:
            self.streams.serve(signs)
        if not self._empty or self._sign in signs:
            while int(self._inbox.get(_EVENTS)) & _POLLIN:
                came |= self._take()
            self._empty = True
        if came:
            self._has_news = True
            self.heard_s = time.monotonic()
        return came

    def take_up(self, source: int, offer: memoryview) -> Stream:
        """The stream that another rank has offered."""
        if self.streams is None:
            raise FrameError("an offer to do without encryption")
        return self.streams.take_up(_host(self._seats[source].address), offer)

    def connect(self, to: int) -> zmq.Socket[bytes]:
        """A socket to another rank."""
        seat = self._seats[to]
        socket = self._socket(zmq.PUSH)
        socket.ipv6 = "[" in seat.address
        self.gate.introduce(socket, str(self.rank), seat.public_key)
        socket.connect(seat.address)
        return socket

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets; what has been sent has so long to leave this host."""
        if self.streams is not None:
            self.streams.close()  # the system sends the rest, however long it takes
        self._watch.close()
        for socket in self._sockets:
            socket.close(linger=int(1000 * linger_s))
        self.gate.close()
        self.context.term()

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        # How much may be under way is agreed between the ranks: see chunks.py.
        socket.sndhwm = socket.rcvhwm = 0
        socket.backlog = _BACKLOG
        socket.maxmsgsize = CHUNK_BYTES + _SEAL_BYTES
        self._sockets.append(socket)
        return socket

    def _take(self) -> bool:
        """The next chunk, if there is one."""
        inbox = self._inbox
        try:
            prefix = inbox.recv(_NOW, copy=False)
        except zmq.Again:  # ZeroMQ also announces the sender's credentials, which come before the first chunk
            return False
        payload = inbox.recv(_NOW, copy=False) if prefix.more else None
        parts = 2
        while payload is not None and payload.more:
            payload, parts = inbox.recv(_NOW, copy=False), parts + 1
        name = str(prefix.get("User-Id"))
        try:
            if parts > 2:
                raise FrameError("a chunk of more than two parts")
            self._way_of(name).take(prefix, payload)
        except FrameError as error:
            self._refuse(f"rank {name}" if name.isdecimal() else f"the {name}", str(error))
        return True

    def _way_of(self, name: str) -> TcpWay:
        way = self._by_name.get(name)
        if way is None:
            # The gate has let it in, so it is one of the run; but it may be the driver.
            if not name.isdecimal() or int(name) >= len(self._seats) or int(name) == self.rank:
                raise FrameError("a chunk of one who is no other rank")
            way = self.way(int(name))
        return way

    def _refuse(self, name: str, reason: str) -> None:
        self.refused[name, reason] += 1
        if self.refused[name, reason] == 1:
            _log.warning("rank %d refused what came from %s: %s", self.rank, name, reason)


def _host(address: str) -> str:
    """Of an address as ZeroMQ writes it."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


class TcpWays:
    """The ways of one rank over its endpoint."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._endpoint = endpoint

    def out(self, to: int) -> TcpWay:
        return self._endpoint.way(to)

    def into(self, source: int) -> TcpWay:
        return self._endpoint.way(source)
