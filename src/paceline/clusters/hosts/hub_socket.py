"""The hub's socket: it takes letters of the run's ranks, and nobody can make it use more memory than these need."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import zmq

from paceline.clusters.hosts.wire import ASKING, HEARING, LetterReader, limit_intake, write_letter
from paceline.clusters.process.channel import Letter
from paceline.errors import FrameError
from paceline.links.credentials import Gate
from paceline.links.seats import Seat, bind_socket

__all__ = ["Arrival", "HubSocket"]

_log = logging.getLogger("paceline")

# Most that a connection may have brought and ZeroMQ not handed over. The 16 pieces that may wait unread are 1 MiB.
_HELD_BYTES = 2**23
_LOOK_S = 0.1  # how often that is checked


class Arrival(NamedTuple):
    """A piece of a letter has come; with its last piece, the letter."""

    rank: int
    sender: bytes
    letter: Letter | None


class HubSocket:
    """Takes pieces of letters from whoever has been admitted. A stranger is cut off after some kilobytes."""

    def __init__(self, *, bind: str, encrypt: bool, token: bytes, ports: range | None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Gate(self._context, encrypt=encrypt, token=token)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.sndhwm = 0
        limit_intake(self._socket)
        self._intake = self._gate.guard(self._socket)
        self._readers: dict[bytes, LetterReader] = {}
        self._refused: set[str] = set()
        self._look_s = 0.0
        try:
            self.seat = Seat(bind_socket(self._socket, bind, ports), self._gate.keys.public)
        except BaseException:
            self.close(linger_s=0.0)
            raise

    def admit(self, names: Mapping[str, bytes]) -> None:
        self._gate.admit(names)

    def receive(self, timeout_s: float) -> Iterator[Arrival]:
        """Give what has come; wait if there is nothing. It ends after that time: somebody may send without end."""
        if self._socket.poll(int(timeout_s * 1000)):
            until_s = time.monotonic() + timeout_s
            while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                identity, *parts = self._socket.recv_multipart(copy=False)
                if arrival := self._read(bytes(identity.buffer), parts):
                    yield arrival
                if time.monotonic() > until_s:
                    break
        self._look_at_connections()

    def send(
        self, to: bytes, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()
    ) -> None:
        for piece in write_letter(word, values, blobs):
            self._socket.send_multipart([to, piece])

    def close(self, *, linger_s: float) -> None:
        """Close the socket. What was sent before has so long to leave."""
        self._socket.close(linger=int(1000 * linger_s))
        self._gate.close()
        self._context.term()

    def _read(self, sender: bytes, parts: Sequence[zmq.Frame]) -> Arrival | None:
        for part in parts:
            self._intake.took(int(part.get(zmq.SRCFD)), len(part.buffer))
        name = str(parts[0].get("User-Id"))
        try:
            rank = _rank_of(sender, name)
            if len(parts) > 1:
                raise FrameError("a piece of several parts")
            reader = self._readers.setdefault(sender, LetterReader())
            return Arrival(rank, sender, reader.take(parts[0].buffer))
        except FrameError as error:
            self._refuse(name, f"refused a letter from {sender!r}: {error}")
        return None

    def _look_at_connections(self) -> None:
        now_s = time.monotonic()
        if now_s > self._look_s + _LOOK_S:
            self._look_s = now_s
            port = int(self.seat.address.rpartition(":")[2])
            if self._intake.cut_off(port, _HELD_BYTES):
                self._refuse("a message without end", "cut off a connection that sent a message without end")

    def _refuse(self, who: str, text: str) -> None:
        """Go on without it; say so once."""
        if who not in self._refused:
            self._refused.add(who)
            _log.warning("%s", text)


def _rank_of(sender: bytes, name: str) -> int:
    """The rank that the sender's credentials name. What the sender calls itself must agree."""
    if sender not in (ASKING + name.encode(), HEARING + name.encode()) or not name.isdigit():
        raise FrameError(f"its credentials say {name!r}")
    return int(name)
