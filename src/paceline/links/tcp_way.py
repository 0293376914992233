"""The way between this rank and one other over TCP, in both directions."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Protocol

import torch
import zmq

from paceline.errors import FrameError
from paceline.links.chunks import (
    CHUNK_BYTES,
    FIRST,
    FIRST_BYTES,
    MORE,
    PREFIX_BYTES,
    TAKEN,
    WINDOW_BYTES,
    Arrivals,
    cost_bytes,
    pack_prefix,
)
from paceline.links.frames import Header, pack
from paceline.links.transfers import RecvOperation, SendOperation, SendQueue
from paceline.replica.sums import combine_into

__all__ = ["Endpoint", "TcpWay"]

_memmove = ctypes.memmove
_char = ctypes.c_char
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


class Endpoint(Protocol):
    """The rank's sockets, which all of its ways share."""

    run_id: bytes

    def drain(self) -> bool:
        """Take what has come, from whomever, and give it to its way; tell whether anything has."""
        ...

    def connect(self, to: int) -> zmq.Socket[bytes]:
        """A socket to another rank."""
        ...


class TcpWay(SendQueue):
    """What is under way between two ranks. Its socket is opened when there is something to send.

    A message goes in chunks. A rank sends no more than the window ahead of what the other has consumed; each chunk
    tells how much that is the other way, and where there is nothing to send, a chunk of its own does.
    """

    __slots__ = (
        "_arrivals",
        "_came",
        "_consumed_bytes",
        "_endpoint",
        "_number",
        "_prefix",
        "_prefix_view",
        "_sent_bytes",
        "_socket",
        "_taken_bytes",
        "_to",
        "_told_bytes",
        "active",
    )

    def __init__(self, endpoint: Endpoint, to: int) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._to = to
        self._socket: zmq.Socket[bytes] | None = None
        self._prefix = bytearray(FIRST_BYTES)
        self._prefix_view = memoryview(self._prefix)
        self._number = 0  # of chunks sent
        self._sent_bytes = 0  # what they took of the window, ever
        self._taken_bytes = 0  # of that, what the other says to have consumed
        self._arrivals = Arrivals(endpoint.run_id)
        self._came: deque[Header | zmq.Frame] = deque()
        self._consumed_bytes = 0  # of what has come, ever
        self._told_bytes = 0  # of that, what the other has been told
        self.active: RecvOperation | None = None

    # Out

    def _write(self, operation: SendOperation) -> bool:
        if operation.sent < 0:
            nbytes = operation.tensor.nbytes
            n = min(nbytes, CHUNK_BYTES)
            if not self._has_room(n):
                return False
            pack(
                self._prefix_view,
                PREFIX_BYTES,
                operation.tensor,
                operation.tag,
                operation.version,
                0,
                operation.note,
                operation.begins_s,
            )
            if not self._send(FIRST, operation.address, n):
                return False
            operation.nbytes, operation.sent = nbytes, n
        while operation.sent < operation.nbytes:
            n = min(operation.nbytes - operation.sent, CHUNK_BYTES)
            if not (self._has_room(n) and self._send(MORE, operation.address + operation.sent, n)):
                return False
            operation.sent += n
        return True

    def _has_room(self, payload_bytes: int) -> bool:
        most = WINDOW_BYTES - cost_bytes(payload_bytes)
        if self._sent_bytes - self._taken_bytes > most:
            self._endpoint.drain()
        return self._sent_bytes - self._taken_bytes <= most

    def _send(self, kind: int, address: int, payload_bytes: int) -> bool:
        """Hand a chunk over, or leave everything as it was if the other refuses to hear us."""
        socket = self._socket
        if socket is None:
            socket = self._socket = self._endpoint.connect(self._to)
        pack_prefix(self._prefix, kind, self._endpoint.run_id, self._number, self._consumed_bytes)
        prefix = self._prefix if kind == FIRST else self._prefix_view[:PREFIX_BYTES]
        try:
            if payload_bytes:
                socket.send(prefix, _NOW_AND_MORE)
                socket.send((_char * payload_bytes).from_address(address), _NOW)
            else:
                socket.send(prefix, _NOW)
        except zmq.Again:
            return False
        self._number += 1
        self._told_bytes = self._consumed_bytes
        if kind != TAKEN:
            self._sent_bytes += cost_bytes(payload_bytes)
        return True

    # In

    def take(self, prefix: zmq.Frame, payload: zmq.Frame | None) -> None:
        """A chunk has come from the other rank: put it in line, or raise FrameError and change nothing."""
        payload_bytes = 0 if payload is None else len(payload)
        if payload is not None and not payload_bytes:
            raise FrameError("a payload where none belongs")
        header, self._taken_bytes = self._arrivals.check(
            prefix.buffer,
            payload_bytes,
            self._consumed_bytes,
            least=self._taken_bytes,
            most=self._sent_bytes,
        )
        if header is not None:
            self._came.append(header)
        if payload is not None:
            self._came.append(payload)

    def header(self) -> Header | None:
        """The header of the next message, if one has come."""
        if not self._came:
            self._endpoint.drain()
            if not self._came:
                return None
        header = self._came.popleft()
        assert isinstance(header, Header)
        if not header.nbytes:
            self._consume(0)
        return header

    def read(self, operation: RecvOperation) -> bool:
        """Move what has come of the active message; tell whether that is all of it."""
        assert operation.header is not None
        nbytes = operation.header.nbytes
        while operation.received < nbytes:
            if not self._came:
                self._endpoint.drain()
                if not self._came:
                    return False
            payload = self._came.popleft()
            assert isinstance(payload, zmq.Frame)
            n = len(payload)
            _move(operation, payload, n)
            operation.received += n
            self._consume(n)
        return True

    def _consume(self, payload_bytes: int) -> None:
        self._consumed_bytes += cost_bytes(payload_bytes)
        if self._consumed_bytes - self._told_bytes >= WINDOW_BYTES // 2:
            self._send(TAKEN, 0, 0)


def _move(operation: RecvOperation, payload: zmq.Frame, n: int) -> None:
    into = operation.into
    assert into is not None
    if operation.combine == "copy":
        _memmove(into.data_ptr() + operation.received, (_char * n).from_buffer(payload.buffer), n)
        return
    item_bytes = into.element_size()
    start = operation.received // item_bytes
    part = into.view(-1)[start : start + n // item_bytes]
    combine_into(part, torch.frombuffer(payload, dtype=into.dtype), operation.combine)
