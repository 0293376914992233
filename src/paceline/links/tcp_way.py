"""The way between this rank and one other over TCP, in both directions."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Protocol

import zmq

from paceline.errors import FrameError
from paceline.links.chunks import (
    CHUNK_BYTES,
    FIRST,
    FIRST_BYTES,
    MORE,
    OFFER,
    PREFIX_BYTES,
    STREAMED,
    TAKEN,
    WINDOW_BYTES,
    Arrivals,
    cost_bytes,
    pack_prefix,
)
from paceline.links.frames import Header, pack
from paceline.links.payloads import combine_next, memory_at
from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation, SendQueue
from paceline.links.streams import Stream, Streams

__all__ = ["Endpoint", "TcpWay"]

_char = ctypes.c_char
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
STREAM_BYTES = CHUNK_BYTES
"""Payloads of more go by a stream, where there may be one."""
_SCRATCH_BYTES = 2**18  # what is combined at a time: it stays in the second-level cache


class _ByStream:
    """Stands for a payload that comes by the stream."""


_BY_STREAM = _ByStream()


class Endpoint(Protocol):
    """The rank's sockets, which all of its ways share."""

    run_id: bytes
    streams: Streams | None

    def drain(self) -> bool:
        """Take what has come, from whomever, and give it to its way; tell whether anything has."""
        ...

    def connect(self, to: int) -> zmq.Socket[bytes]:
        """A socket to another rank."""
        ...

    def take_up(self, source: int, offer: memoryview) -> Stream:
        """The stream that another rank has offered."""
        ...


class TcpWay(SendQueue):
    """What is under way between two ranks. Its socket is opened when there is something to send.

    A message goes in chunks. A rank is never further ahead of what the other has consumed than the window. Each chunk
    tells how much its sender has consumed; a rank that has nothing to send tells it by a chunk without a message. Where
    nothing is encrypted a large payload goes by a stream instead, for which the system's own buffers are the window.
    """

    __slots__ = (
        "_arrivals",
        "_came",
        "_consumed_bytes",
        "_endpoint",
        "_from_stream",
        "_number",
        "_part",
        "_prefix",
        "_prefix_view",
        "_scratch",
        "_sent_bytes",
        "_socket",
        "_taken_bytes",
        "_to",
        "_to_stream",
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
        self._came: deque[Header | zmq.Frame | _ByStream] = deque()
        self._to_stream: Stream | None = None
        self._from_stream: Stream | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._part = b""  # of an element, that has come by the stream
        self._consumed_bytes = 0  # of what has come, ever
        self._told_bytes = 0  # of that, what the other has been told
        self.active: RecvOperation | None = None

    # Out

    def _write(self, operation: SendOperation) -> bool:
        if operation.sent < 0 and not self._begin(operation):
            return False
        if self._is_streamed(operation.nbytes):
            return self._pour(operation)
        while operation.sent < operation.nbytes:
            n = min(operation.nbytes - operation.sent, CHUNK_BYTES)
            if not (self._has_room(n) and self._send(MORE, operation.address + operation.sent, n)):
                return False
            operation.sent += n
        return True

    def _begin(self, operation: SendOperation) -> bool:
        """Send the header, and the first of the payload unless it goes by a stream."""
        nbytes = operation.tensor.nbytes
        if nbytes > STREAM_BYTES and self._to_stream is None and not self._offer_stream():
            return False
        is_streamed = self._is_streamed(nbytes)
        n = 0 if is_streamed else min(nbytes, CHUNK_BYTES)
        if not self._has_room(n):
            return False
        pack(
            self._prefix_view,
            PREFIX_BYTES,
            operation.tensor,
            operation.tag,
            0,
            operation.numbers,
            operation.begins_s,
            on_device=operation.on_device,
        )
        if not self._send(STREAMED if is_streamed else FIRST, operation.address, n):
            return False
        operation.nbytes, operation.sent = nbytes, n
        return True

    def _is_streamed(self, nbytes: int) -> bool:
        return nbytes > STREAM_BYTES and self._to_stream is not None

    def _offer_stream(self) -> bool:
        """Offer one where there may be one; tell whether that has been said, or need not be."""
        streams = self._endpoint.streams
        offered = streams.offer() if streams is not None else None
        if offered is None:
            return True
        stream, words = offered
        place = (_char * len(words)).from_buffer_copy(words)
        if not self._send(OFFER, ctypes.addressof(place), len(words)):
            return False
        self._to_stream = stream
        return True

    def _pour(self, operation: SendOperation) -> bool:
        stream, view = self._to_stream, memory_at(operation.address, operation.nbytes)
        assert stream is not None
        while operation.sent < operation.nbytes:
            n = stream.write(view[operation.sent :])
            if not n:
                self._endpoint.drain()  # perhaps the other comes for it now
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
        prefix = self._prefix if kind in (FIRST, STREAMED) else self._prefix_view[:PREFIX_BYTES]
        try:
            if payload_bytes:
                socket.send(prefix, _NOW_AND_MORE)
                socket.send(memory_at(address, payload_bytes), _NOW)
            else:
                socket.send(prefix, _NOW)
        except zmq.Again:
            return False
        self._number += 1
        self._told_bytes = self._consumed_bytes
        if kind not in (TAKEN, OFFER):
            self._sent_bytes += cost_bytes(payload_bytes)
        return True

    # In

    def take(self, prefix: zmq.Frame, payload: zmq.Frame | None) -> None:
        """A chunk has come from the other rank: put it in line, or raise FrameError and change nothing."""
        payload_bytes = 0 if payload is None else len(payload)
        if payload is not None and not payload_bytes:
            raise FrameError("a payload where none belongs")
        kind, header, self._taken_bytes = self._arrivals.check(
            prefix.buffer,
            payload_bytes,
            self._consumed_bytes,
            least=self._taken_bytes,
            most=self._sent_bytes,
        )
        if header is not None:
            self._came.append(header)
        if kind == STREAMED:
            self._came.append(_BY_STREAM)
        elif kind == OFFER:
            assert payload is not None
            self._from_stream = self._endpoint.take_up(self._to, payload.buffer)
        elif payload is not None:
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
            payload = self._came[0]
            if payload is _BY_STREAM:
                if not self._draw(operation, nbytes):
                    return False
                n = 0
            else:
                assert isinstance(payload, zmq.Frame)
                n = len(payload)
                combine_next(operation, payload.buffer, n)
            self._came.popleft()
            self._consume(n)
        return True

    def _draw(self, operation: RecvOperation, nbytes: int) -> bool:
        """Take what the stream has of a message; tell whether that is the rest of it."""
        into = operation.into
        assert into is not None
        if operation.combine != "copy":
            return self._draw_by_pieces(operation, nbytes, into.element_size())
        view = memory_at(into.data_ptr(), nbytes)
        if self._part:  # of an element; the operation that it was meant for has been cancelled
            view[operation.received : operation.received + len(self._part)] = self._part
            operation.received += len(self._part)
            self._part = b""
        while operation.received < nbytes and (n := self._read_stream(view[operation.received :])):
            operation.received += n
        return operation.received == nbytes

    def _draw_by_pieces(self, operation: RecvOperation, nbytes: int, item_bytes: int) -> bool:
        while operation.received < nbytes:
            begun = len(self._part)
            piece = self._scratch[: min(nbytes - operation.received, _SCRATCH_BYTES)]
            piece[:begun] = self._part
            n = self._read_stream(piece[begun:])
            if not n:
                return False
            whole = (begun + n) // item_bytes * item_bytes
            self._part = bytes(piece[whole : begun + n])
            combine_next(operation, piece, whole)
        return True

    def _read_stream(self, place: memoryview) -> int:
        return self._from_stream.read_into(place) if self._from_stream is not None else 0

    def _consume(self, payload_bytes: int) -> None:
        self._consumed_bytes += cost_bytes(payload_bytes)
        if self._consumed_bytes - self._told_bytes >= WINDOW_BYTES // 2:
            self._send(TAKEN, 0, 0)
