"""A ring buffer in shared memory with one writer and one reader: the way from one rank to another on the same host.

A message is a header and its payload, rounded up to a multiple of the header size. So no header is split at the end
of the ring. The writer publishes a large payload block by block, so that the reader can combine the first blocks
while the next are written. A payload in lent memory is not copied into the ring: the reader reads it in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.errors import FrameError
from paceline.links.frames import HEADER_BYTES, Header, Place, pack, unpack
from paceline.links.memory.bells import Bells
from paceline.links.memory.lending import Lending
from paceline.links.memory.shared import CACHE_LINE, SharedMemory
from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation, SendQueue
from paceline.model.sums import combine_into

RING_BYTES = 2**22  # measured: the best of 1 to 8 MiB, with two and four ranks on two cores
PIECE_BYTES = 2**19
CHANNEL_BYTES = 2 * CACHE_LINE + RING_BYTES
# Two cache lines. The writer's line has the total bytes written and the end of the lent message that it last
# revoked. The reader's line has the total bytes read and the end of the lent message that it last began to read.
_HEAD, _TAKEN_BACK = 0, 1
_TAIL, _TAKEN = CACHE_LINE // 8, CACHE_LINE // 8 + 1
_DATA = 2 * CACHE_LINE


class Writer(SendQueue):
    """The writing end."""

    __slots__ = (
        "_base",
        "_bells",
        "_head",
        "_lending",
        "_lent_end",
        "_move",
        "_published",
        "_tail",
        "_to",
        "_view",
        "_words",
    )

    def __init__(
        self, memory: SharedMemory, offset: int, to: int, bells: Bells, lending: Lending | None
    ) -> None:
        super().__init__()
        self._words = memory.words(offset, _DATA // 8)
        self._base = memory.address + offset + _DATA
        self._view = memory.view[offset + _DATA : offset + CHANNEL_BYTES]
        self._to = to
        self._bells = bells
        self._lending = lending
        self._move = memory.move
        self._lent_end = 0  # end of the lent message that is being read; 0 if there is none
        self._head = self._published = self._words[_HEAD]
        self._tail = self._words[_TAIL]

    def __str__(self) -> str:
        return f"to rank {self._to}: {_describe(self._words)}, {len(self.queue)} queued, lent end {self._lent_end}"

    def detach(self, operation: SendOperation) -> bool:
        if self._lent_end and operation is self.queue[0] and not self._take_back():
            return False
        return super().detach(operation)

    def _take_back(self) -> bool:
        """Revoke the lent message, and send it through the ring. Return False while its reader is reading it."""
        end, words = self._lent_end, self._words
        if words[_TAKEN_BACK] != end:
            words[_TAKEN_BACK] = end
            # `Reader._take` has a fence too, so at least one of the two sees the other's word.
            with self._bells.fence:
                pass
        if words[_TAKEN] == end and words[_TAIL] < end:
            return False
        # Only the reader's byte count shows whether it has read the message. TAKEN does not, because the reader may
        # set TAKEN now, find that the message is revoked, and clear TAKEN again.
        if words[_TAIL] < end:
            self._lent_end = 0
        return True

    def _write(self, operation: SendOperation) -> bool:
        if operation.sent < 0:
            if not self._room():
                return False
            self._write_header(operation)
        if self._lent_end:
            return self._is_read(operation)
        while operation.sent < operation.nbytes and (room := self._room()):
            place = self._head % RING_BYTES
            n = min(operation.nbytes - operation.sent, room, RING_BYTES - place, PIECE_BYTES)
            self._move(self._base + place, operation.address + operation.sent, n)
            operation.sent += n
            self._head += -(-n // HEADER_BYTES) * HEADER_BYTES
            self._publish()
        if self._head != self._published:
            self._publish()
        return operation.sent == operation.nbytes

    def _write_header(self, operation: SendOperation) -> None:
        lent = self._place(operation)
        operation.nbytes = pack(
            self._view,
            self._head % RING_BYTES,
            operation.tensor,
            operation.tag,
            0,
            operation.numbers,
            operation.begins_s,
            lent,
            on_device=operation.on_device,
            number=operation.number,
        )
        operation.sent = 0
        self._head += HEADER_BYTES
        if lent is not None:
            self._lent_end = self._head
            self._publish()

    def _place(self, operation: SendOperation) -> Place | None:
        """Return the location of a message in lent memory. None if it must go through the ring."""
        if self._lending is None or self._words[_TAIL] < self._words[_TAKEN_BACK]:
            # There is only one word for revoking. Lend nothing until the reader has passed the revoked message.
            return None
        return self._lending.place(operation)

    def _is_read(self, operation: SendOperation) -> bool:
        if self._words[_TAIL] < self._lent_end:
            return False
        self._lent_end = 0
        operation.sent = operation.nbytes
        return True

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
        "_lending",
        "_memory",
        "_move",
        "_source",
        "_tail",
        "_typed",
        "_view",
        "_words",
        "active",
    )

    def __init__(
        self, memory: SharedMemory, offset: int, source: int, bells: Bells, lending: Lending | None
    ) -> None:
        self._memory = memory
        self._move = memory.move
        self._words = memory.words(offset, _DATA // 8)
        self._data = offset + _DATA
        self._base = memory.address + self._data
        self._view = memory.view[self._data : offset + CHANNEL_BYTES]
        self._source = source
        self._bells = bells
        self._lending = lending
        self._head = self._words[_HEAD]
        self._tail = self._words[_TAIL]
        self._typed: dict[torch.dtype, Tensor] = {}
        self.active: RecvOperation | None = None

    def __str__(self) -> str:
        return f"from rank {self._source}: {_describe(self._words)}, reading {self.active}"

    def header(self) -> Header | None:
        """Return the header of the next message; None if none has arrived."""
        if not self._available():
            return None
        header = unpack(self._view, self._tail % RING_BYTES)
        self._tail += HEADER_BYTES
        if not header.nbytes:
            self._release()
        return header

    def read(self, operation: RecvOperation) -> bool:
        """Move the data of the active message that has arrived. Return whether the message is complete."""
        assert operation.header is not None
        nbytes = operation.header.nbytes
        if operation.header.lent is not None and not operation.received and self._take():
            self._read_lent(operation, operation.header)
            operation.received = nbytes
            self._release()
        while operation.received < nbytes:
            available = self._available()
            if not available:
                return False
            place = self._tail % RING_BYTES
            n = min(nbytes - operation.received, available, RING_BYTES - place, PIECE_BYTES)
            self._take_in(operation, place, n)
            operation.received += n
            self._tail += -(-n // HEADER_BYTES) * HEADER_BYTES
            self._release()
        return True

    def _take(self) -> bool:
        """Claim the next lent message.

        Return False if it was revoked. The writer must not change a claimed message.
        """
        self._words[_TAKEN] = self._tail
        with self._bells.fence:
            pass
        if self._words[_TAKEN_BACK] != self._tail:
            return True
        self._words[_TAKEN] = 0
        self._bells.ring(self._source)  # the writer may be waiting for this change
        return False

    def _read_lent(self, operation: RecvOperation, header: Header) -> None:
        into = operation.into
        assert into is not None
        if self._lending is None:
            raise FrameError(f"not a frame: rank {self._source} lends nothing")
        memory, offset = self._lending.find(self._source, header)
        if operation.combine == "copy":
            self._move(into.data_ptr(), memory.address + offset, header.nbytes)
        else:
            lent = memory.tensor(header.dtype, offset, into.numel()).view(into.shape)
            combine_into(into, lent, operation.combine)

    def _take_in(self, operation: RecvOperation, place: int, n: int) -> None:
        into = operation.into
        assert into is not None
        if operation.combine == "copy":
            self._move(into.data_ptr() + operation.received, self._base + place, n)
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


def _describe(words: memoryview) -> str:
    names = {"written": _HEAD, "read": _TAIL, "taken back": _TAKEN_BACK, "taken": _TAKEN}
    return ", ".join(f"{name} {words[at]}" for name, at in names.items())
