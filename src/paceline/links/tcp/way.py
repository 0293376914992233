"""Tensors between this rank and one other over one connection, in both directions."""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch

from paceline.errors import FrameError
from paceline.links.frames import HEADER_BYTES, Header, pack, unpack
from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation, SendQueue
from paceline.links.tcp.cuts import LinkCuts
from paceline.links.tcp.streams import PlainStream
from paceline.model.sums import combine_into

_MOST_BYTES = 2**40  # maximum size of a message; a header with a larger size is invalid
_BUFFER_BYTES = 2**16  # headers and small payloads are received here, several with one call
_SCRATCH_BYTES = 2**18  # bytes combined at a time, which fit into the second-level cache
_GENERATIONS = 2**16  # before their numbers in headers repeat
_NOTHING = memoryview(b"")

_memmove = ctypes.memmove
_char = ctypes.c_char


class Endpoint(Protocol):
    """The rank's sockets, which all of its ways share."""

    def drain(self) -> bool:
        """Note which connections can be read or written; return whether anything has changed."""
        ...

    def request(self, rank: int) -> None:
        """Connect to another rank, unless an attempt has begun."""
        ...

    cuts: LinkCuts
    """Times in which messages are held back."""

    def note_received(self) -> None:
        """Note that data has arrived."""
        ...


class TcpWay(SendQueue):
    """Messages between two ranks. It connects when it has something to send, or uses a connection of the other rank.

    A message is a header and a payload. The payload goes from the sender's tensor to the receiver's without a copy in
    between. The system's socket buffers limit what is in flight.
    """

    __slots__ = (
        "_begin",
        "_buffer",
        "_end",
        "_endpoint",
        "_generation",
        "_header",
        "_part",
        "_scratch",
        "_stream",
        "_to",
        "_unsent_header",
        "active",
    )

    def __init__(self, endpoint: Endpoint, to: int, *, generation: int = 0) -> None:
        super().__init__()
        self._generation = generation % _GENERATIONS
        self._endpoint = endpoint
        self._to = to
        self._stream: PlainStream | None = None
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._unsent_header = _NOTHING
        self._buffer = _NOTHING
        self._begin = self._end = 0  # range of unused bytes in the buffer
        self._scratch = _NOTHING
        self._part = b""  # the bytes of an element that has not arrived completely
        self.active: RecvOperation | None = None

    def attach(self, stream: PlainStream) -> None:
        """Use this connection from now on."""
        self._stream = stream
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def __str__(self) -> str:
        stream = self._stream
        state = "not connected" if stream is None else "closed" if stream.is_broken else "open"
        return f"TCP to rank {self._to}: {state}, {len(self.queue)} messages to send"

    # Sending

    def resumes_s(self) -> float:
        return self._endpoint.cuts.resumes_s(self._to)

    def _write(self, operation: SendOperation) -> bool:
        if operation.sent < 0:
            # First, because this raises an error if the tensor cannot be sent.
            operation.nbytes = self._pack(operation)
        stream = self._writable()
        if stream is None:
            return False
        if operation.sent < 0:
            self._unsent_header, operation.sent = self._header, 0
        payload = memory_at(operation.address, operation.nbytes)
        while self._unsent_header or operation.sent < operation.nbytes:
            count = stream.write(self._unsent_header, payload[operation.sent :])
            if not count:
                return False
            of_header = min(count, len(self._unsent_header))
            self._unsent_header = self._unsent_header[of_header:]
            operation.sent += count - of_header
        return True

    def _writable(self) -> PlainStream | None:
        """Return the connection if it can send; request a connection if there is none."""
        if self._endpoint.cuts and self._endpoint.cuts.holds(self._to):
            return None
        if self._stream is None:
            self._endpoint.request(self._to)
        if self._stream is None or not self._stream.is_writable:
            self._endpoint.drain()
        return self._stream if self._stream is not None and self._stream.is_writable else None

    def _pack(self, operation: SendOperation) -> int:
        return pack(
            self._header,
            0,
            operation.tensor,
            operation.tag,
            self._generation,
            operation.numbers,
            operation.begins_s,
            on_device=operation.on_device,
            number=operation.number,
        )

    # Receiving

    def header(self) -> Header | None:
        """Return the header of the next message; None if it has not arrived."""
        if self._stream is None:
            self._endpoint.drain()
            if self._stream is None:
                return None
        while self._end - self._begin < HEADER_BYTES:
            self._make_room()
            count = self._receive(self._buffer[self._end :])
            if not count:
                return None
            self._end += count
        header = self._unpack()
        self._begin += HEADER_BYTES
        return header

    def read(self, operation: RecvOperation) -> bool:
        """Move the received part of the active message. Return whether the message is complete."""
        assert operation.header is not None
        nbytes = operation.header.nbytes
        if operation.combine == "copy":
            return self._read_copy(operation, nbytes)
        return self._read_combined(operation, nbytes)

    def _read_copy(self, operation: RecvOperation, nbytes: int) -> bool:
        assert operation.into is not None
        view = memory_at(operation.into.data_ptr(), nbytes)
        if self._part:  # left by the cancelled operation that this one replaces
            view[operation.received : operation.received + len(self._part)] = self._part
            operation.received += len(self._part)
            self._part = b""
        while operation.received < nbytes:
            count = self._take(view[operation.received :])
            if not count:
                return False
            operation.received += count
        return True

    def _read_combined(self, operation: RecvOperation, nbytes: int) -> bool:
        assert operation.into is not None
        item_bytes = operation.into.element_size()
        if not self._scratch:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while operation.received < nbytes:
            begun = len(self._part)
            piece = self._scratch[: min(nbytes - operation.received, _SCRATCH_BYTES)]
            piece[:begun] = self._part
            count = self._take(piece[begun:])
            if not count:
                return False
            whole = (begun + count) // item_bytes * item_bytes
            self._part = bytes(piece[whole : begun + count])
            combine_next(operation, piece, whole)
        return True

    def _take(self, place: memoryview) -> int:
        """Fill `place` from the buffer, or straight from the connection if the buffer is empty."""
        buffered = min(self._end - self._begin, len(place))
        if not buffered:
            return self._receive(place)
        place[:buffered] = self._buffer[self._begin : self._begin + buffered]
        self._begin += buffered
        return buffered

    def _receive(self, place: memoryview) -> int:
        stream = self._stream
        assert stream is not None, "a message has begun to arrive"
        if not stream.is_readable:
            self._endpoint.drain()
            if not stream.is_readable:
                return 0
        count = stream.read_into(place)
        if count:
            self._endpoint.note_received()
        return count

    def _make_room(self) -> None:
        """Move the rest of the buffer to its beginning."""
        if not self._begin:
            return
        rest = self._end - self._begin
        self._buffer[:rest] = self._buffer[self._begin : self._end]
        self._begin, self._end = 0, rest

    def _unpack(self) -> Header:
        try:
            header = unpack(self._buffer, self._begin)
        except FrameError as error:
            raise self._refused(str(error)) from None
        if header.nbytes > _MOST_BYTES:
            raise self._refused(f"it announces {header.nbytes:,} bytes; the most is {_MOST_BYTES:,}")
        if header.epoch != self._generation:
            raise self._refused(f"it is of generation {header.epoch}, not {self._generation}")
        if header.lent is not None:
            raise self._refused("it refers to shared memory")
        return header

    def _refused(self, reason: str) -> FrameError:
        """Close the connection, because the next header cannot be found in the stream of bytes. Return the error."""
        assert self._stream is not None
        self._stream.close()
        return FrameError(f"rank {self._to} has sent a message that is refused: {reason}")


def combine_next(operation: RecvOperation, payload: memoryview, n: int) -> None:
    """Combine the first `n` bytes of `payload` into the operation's tensor, as the next part of its message."""
    into = operation.into
    assert into is not None
    if operation.combine == "copy":
        _memmove(into.data_ptr() + operation.received, (_char * n).from_buffer(payload), n)
    elif n:
        item_bytes = into.element_size()
        start = operation.received // item_bytes
        part = into.view(-1)[start : start + n // item_bytes]
        combine_into(part, torch.frombuffer(payload, dtype=into.dtype, count=len(part)), operation.combine)
    operation.received += n


def memory_at(address: int, nbytes: int) -> memoryview:
    """Return a view of memory that sockets can send from or receive into. It does not keep the memory alive."""
    return memoryview((_char * nbytes).from_address(address)).cast("B")
