"""What goes over TCP: chunks. Each is a prefix and, with most of them, a part of a tensor.

A message is one chunk or more: the first brings the message's header, and the payload follows in order. The prefix says
which run it is of, the number of the chunk among all that one rank ever sent to the other, and how much its sender has
consumed of what came the other way. Whatever does not check is refused before anything is done with it, and changes
nothing.
"""

from __future__ import annotations

import struct

from paceline.errors import FrameError
from paceline.links.frames import HEADER_BYTES, Header, unpack
from paceline.links.streams import OFFER_BYTES

__all__ = [
    "CHUNK_BYTES",
    "FIRST",
    "FIRST_BYTES",
    "MORE",
    "OFFER",
    "PREFIX_BYTES",
    "RUN_ID_BYTES",
    "STREAMED",
    "TAKEN",
    "WINDOW_BYTES",
    "Arrivals",
    "cost_bytes",
    "pack_prefix",
]

CHUNK_BYTES = 2**18
WINDOW_BYTES = 2**22
"""What may be under way or unread between two ranks, one way."""
# The kinds of chunks: a message's first one; a later one; no message, only how much was consumed; the offer of a stream
# (see streams.py); and a message whose payload comes by the stream.
FIRST, MORE, TAKEN, OFFER, STREAMED = 1, 2, 3, 4, 5
RUN_ID_BYTES = 16
_MAGIC = b"PLT1"
_PREFIX = struct.Struct("<4sB3x16sQQ")  # magic, kind, run, number, consumed
PREFIX_BYTES = _PREFIX.size
FIRST_BYTES = PREFIX_BYTES + HEADER_BYTES
_LEAST_COST_BYTES = 256  # so that empty messages cannot pile up without bound either
_MOST_BYTES = 2**40  # of one message; a header that says more was not written by us


def pack_prefix(target: bytearray, kind: int, run_id: bytes, number: int, consumed_bytes: int) -> None:
    """Write a prefix to the beginning of `target`."""
    _PREFIX.pack_into(target, 0, _MAGIC, kind, run_id, number, consumed_bytes)


def cost_bytes(payload_bytes: int) -> int:
    """How much of the window a chunk takes."""
    return max(payload_bytes, _LEAST_COST_BYTES)


class Arrivals:
    """What one rank has sent to this one, chunk by chunk: whether the next that comes is the one that must."""

    __slots__ = ("_has_stream", "_item_bytes", "_missing_bytes", "_run_id", "arrived_bytes", "number")

    def __init__(self, run_id: bytes) -> None:
        self._run_id = run_id
        self._has_stream = False
        self.number = 0
        """Chunks so far."""
        self.arrived_bytes = 0
        """What they took of the window."""
        self._missing_bytes = 0  # of the message that has begun
        self._item_bytes = 1

    def check(
        self, prefix: memoryview, payload_bytes: int, consumed_bytes: int, *, least: int, most: int
    ) -> tuple[int, Header | None, int]:
        """The chunk's kind, the header if it brings one, and how much its sender says to have consumed.

        `consumed_bytes` is what was consumed here; the sender must have consumed from `least` to `most`. Raises
        FrameError, and is as before, if the chunk is not the next one. The texts of its errors are few: each is
        logged but once.
        """
        if len(prefix) not in (PREFIX_BYTES, FIRST_BYTES):
            raise FrameError("a prefix of a wrong length")
        magic, kind, run_id, number, taken = _PREFIX.unpack_from(prefix)
        if magic != _MAGIC:
            raise FrameError("no prefix of ours")
        if run_id != self._run_id:
            raise FrameError("a chunk of another run")
        if (len(prefix) == FIRST_BYTES) != (kind in (FIRST, STREAMED)) or not FIRST <= kind <= STREAMED:
            raise FrameError("a chunk of no known kind")
        if number != self.number:
            raise FrameError(
                "a chunk out of turn" if number > self.number else "a chunk that had come before"
            )
        if not least <= taken <= most:
            raise FrameError("more consumed than was sent")
        header = self._check_payload(kind, prefix, payload_bytes)
        if kind not in (TAKEN, OFFER):
            self._count(kind, header, payload_bytes, consumed_bytes)
        self._has_stream |= kind == OFFER
        self.number += 1
        return kind, header, taken

    def _check_payload(self, kind: int, prefix: memoryview, payload_bytes: int) -> Header | None:
        if kind == OFFER and self._has_stream:
            raise FrameError("a second stream")
        if kind in (TAKEN, OFFER):
            if payload_bytes != (OFFER_BYTES if kind == OFFER else 0):
                raise FrameError("a payload where none belongs")
            return None
        if kind == STREAMED:
            return self._check_streamed(prefix, payload_bytes)
        header, missing_bytes, item_bytes = None, self._missing_bytes, self._item_bytes
        if kind == FIRST:
            if missing_bytes:
                raise FrameError("a message within a message")
            header = _header(prefix)
            missing_bytes, item_bytes = header.nbytes, header.dtype.itemsize
        elif not missing_bytes:
            raise FrameError("the rest of no message")
        if payload_bytes > missing_bytes or payload_bytes % item_bytes or bool(missing_bytes) > payload_bytes:
            raise FrameError("a payload of a wrong length")
        return header

    def _check_streamed(self, prefix: memoryview, payload_bytes: int) -> Header:
        if not self._has_stream:
            raise FrameError("a payload by a stream that there is not")
        if self._missing_bytes:
            raise FrameError("a message within a message")
        header = _header(prefix)
        if payload_bytes or not header.nbytes:
            raise FrameError("a payload where none belongs")
        return header

    def _count(self, kind: int, header: Header | None, payload_bytes: int, consumed_bytes: int) -> None:
        cost = cost_bytes(payload_bytes)
        if self.arrived_bytes + cost - consumed_bytes > WINDOW_BYTES:
            raise FrameError("more than there is room for")
        self.arrived_bytes += cost
        if header is not None and kind == FIRST:
            self._missing_bytes, self._item_bytes = header.nbytes, header.dtype.itemsize
        self._missing_bytes -= payload_bytes


def _header(prefix: memoryview) -> Header:
    try:
        header = unpack(prefix, PREFIX_BYTES)
    except FrameError:
        raise FrameError("no header of ours") from None
    if header.nbytes > _MOST_BYTES:
        raise FrameError("a message too large to be one")
    return header
