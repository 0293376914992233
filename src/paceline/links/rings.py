"""A ring of bytes in shared memory with one writer and one reader: the way from one rank to another on the same host.

A message is a header and its payload, rounded up to whole headers, so that no header is cut by the ring's end. The
writer publishes a large payload piece by piece, so that the reader combines the first pieces while the next are being
written.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from paceline.links.bells import Bells
from paceline.links.frames import HEADER_BYTES, Header, pack, unpack
from paceline.links.memory import CACHE_LINE, SharedMemory
from paceline.links.transfers import RecvOperation, SendOperation, SendQueue
from paceline.replica.sums import combine_into

__all__ = ["CHANNEL_BYTES", "Reader", "Writer"]

RING_BYTES = 2**22  # measured: the best of 1 to 8 MiB, with two and four ranks on two cores
PIECE_BYTES = 2**19
CHANNEL_BYTES = 2 * CACHE_LINE + RING_BYTES
_HEAD, _TAIL = (
    0,
    CACHE_LINE // 8,
)  # counts of bytes ever written and ever read, each in a cache line of its own
_DATA = 2 * CACHE_LINE
_memmove = ctypes.memmove


class Writer(SendQueue):
    """The writing end."""

    __slots__ = (
        "_base",
        "_bells",
        "_head",
        "_published",
        "_tail",
        "_to",
        "_view",
        "_words",
    )

    def __init__(
        self,
        memory: SharedMemory,
        offset: int,
        to: int,
        bells: Bells,
    ) -> None:
        super().__init__()
        self._words = memory.words(offset, _DATA // 8)
        self._base = memory.address + offset + _DATA
        self._view = memory.view[offset + _DATA : offset + CHANNEL_BYTES]
        self._to = to
        self._bells = bells
        self._head = self._published = self._words[_HEAD]
        self._tail = self._words[_TAIL]

    def _write(self, operation: SendOperation) -> bool:
        if operation.sent < 0:
            if not self._room():
                return False
            place = self._head % RING_BYTES
            operation.nbytes = pack(
                self._view,
                place,
                operation.tensor,
                operation.tag,
                operation.version,
                0,
                operation.note,
                operation.begins_s,
            )
            operation.sent = 0
            self._head += HEADER_BYTES
        while operation.sent < operation.nbytes and (room := self._room()):
            place = self._head % RING_BYTES
            n = min(operation.nbytes - operation.sent, room, RING_BYTES - place, PIECE_BYTES)
            _memmove(self._base + place, operation.address + operation.sent, n)
            operation.sent += n
            self._head += -(-n // HEADER_BYTES) * HEADER_BYTES
            self._publish()
        if self._head != self._published:
            self._publish()
        return operation.sent == operation.nbytes

    def _room(self) -> int:
        room = RING_BYTES - (self._head - self._tail)
        if room < PIECE_BYTES:
            self._tail = self._words[_TAIL]
            room = RING_BYTES - (self._head - self._tail)
        return room

    def _publish(self) -> None:
        self._words[_HEAD] = self._published = self._head
        self._bells.ring(self._to)


class Reader:
    """The reading end."""

    __slots__ = (
        "_base",
        "_bells",
        "_data",
        "_head",
        "_memory",
        "_source",
        "_tail",
        "_typed",
        "_view",
        "_words",
        "active",
    )

    def __init__(self, memory: SharedMemory, offset: int, source: int, bells: Bells) -> None:
        self._memory = memory
        self._words = memory.words(offset, _DATA // 8)
        self._data = offset + _DATA
        self._base = memory.address + self._data
        self._view = memory.view[self._data : offset + CHANNEL_BYTES]
        self._source = source
        self._bells = bells
        self._head = self._words[_HEAD]
        self._tail = self._words[_TAIL]
        self._typed: dict[torch.dtype, Tensor] = {}
        self.active: RecvOperation | None = None

    def header(self) -> Header | None:
        """The header of the next message, if one has come."""
        if not self._available():
            return None
        header = unpack(self._view, self._tail % RING_BYTES)
        self._tail += HEADER_BYTES
        if not header.nbytes:
            self._release()
        return header

    def read(self, operation: RecvOperation) -> bool:
        """Move what has come of the active message; tell whether that is all of it."""
        assert operation.header is not None
        nbytes = operation.header.nbytes
        while operation.received < nbytes:
            available = self._available()
            if not available:
                return False
            place = self._tail % RING_BYTES
            n = min(nbytes - operation.received, available, RING_BYTES - place, PIECE_BYTES)
            self._move(operation, place, n)
            operation.received += n
            self._tail += -(-n // HEADER_BYTES) * HEADER_BYTES
            self._release()
        return True

    def _move(self, operation: RecvOperation, place: int, n: int) -> None:
        into = operation.into
        assert into is not None
        if operation.combine == "copy":
            _memmove(into.data_ptr() + operation.received, self._base + place, n)
            return
        item = into.element_size()
        ring = self._typed.get(into.dtype)
        if ring is None:
            ring = self._memory.tensor(into.dtype, self._data, RING_BYTES // item)
            self._typed[into.dtype] = ring
        start = operation.received // item
        part = into.view(-1)[start : start + n // item]
        combine_into(part, ring[place // item : (place + n) // item], operation.combine)

    def _available(self) -> int:
        if self._head == self._tail:
            self._head = self._words[_HEAD]
        return self._head - self._tail

    def _release(self) -> None:
        self._words[_TAIL] = self._tail
        self._bells.ring(self._source)
