"""Message passing between the ranks of one host, over a ring of shared memory for each ordered pair of ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.context import ANY, Combine
from paceline.links.bells import Bells
from paceline.links.frames import Header
from paceline.links.memory import SharedMemory
from paceline.links.operation import Waiter
from paceline.links.rings import CHANNEL_BYTES, Reader, Writer
from paceline.links.transfers import COMBINE, RecvOperation, SendOperation

__all__ = ["RingPort"]


class RingPort:
    """One rank's ends of the rings to and from every other rank."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        memory: SharedMemory,
        bells: Bells,
        on_sent: Callable[[SendOperation], None],
        on_received: Callable[[RecvOperation], None],
    ) -> None:
        self.rank = rank
        self.others = tuple(r for r in range(ranks) if r != rank)
        self.received = on_received
        self._on_sent = on_sent
        self._bells = bells
        self._memory = memory
        self._ranks = ranks
        self._writers: dict[int, Writer] = {}
        self._readers: dict[int, Reader] = {}
        self._posted: list[RecvOperation] = []
        self._stash: list[RecvOperation] = []

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Memory for all rings. Those that no message passes are never touched and cost nothing."""
        return ranks * ranks * CHANNEL_BYTES

    def send(self, waiter: Waiter, to: int, tensor: Tensor, tag: int, version: int) -> SendOperation:
        writer = self._writers.get(to)
        if writer is None:
            offset = (self.rank * self._ranks + to) * CHANNEL_BYTES
            writer = self._writers[to] = Writer(self._memory, offset, to, self._bells, self._on_sent)
        operation = SendOperation(waiter, writer, to, tensor, tag, version)
        writer.queue.append(operation)
        return operation

    def recv(
        self, waiter: Waiter, source: int, into: Tensor | None, combine: Combine, tag: int
    ) -> RecvOperation:
        operation = RecvOperation(waiter, self, source, into, combine, tag)
        self._posted.append(operation)
        return operation

    def pump(self, operation: RecvOperation) -> None:
        """Read until this operation is done or nothing more has come."""
        for source in self.others if operation.source == ANY else (operation.source,):
            self._pump_source(source, operation)
            if operation.done:
                return

    def _pump_source(self, source: int, wanted: RecvOperation) -> None:
        reader = self._reader(source)
        while not wanted.done:
            if self._stash and wanted.header is None and self._take_from_stash(source, wanted):
                return
            active = reader.active
            if active is None:
                header = reader.header()
                if header is None:
                    return
                active = reader.active = self._match(source, header, wanted.waiter)
                active.open(source, header)
                if active.done:  # it does not fit
                    return
            if not reader.read(active):
                return
            reader.active = None
            active.close()

    def _reader(self, source: int) -> Reader:
        reader = self._readers.get(source)
        if reader is None:
            offset = (source * self._ranks + self.rank) * CHANNEL_BYTES
            reader = self._readers[source] = Reader(self._memory, offset, source, self._bells)
        return reader

    def _match(self, source: int, header: Header, waiter: Waiter) -> RecvOperation:
        """The first operation posted for such a message; otherwise a new one, which keeps it until it is asked for."""
        for i, operation in enumerate(self._posted):
            if operation.tag == header.tag and operation.source in (source, ANY):
                return self._posted.pop(i)
        early = RecvOperation(waiter, self, source, None, "copy", header.tag)
        early.early = True
        self._stash.append(early)
        return early

    def _take_from_stash(self, source: int, wanted: RecvOperation) -> bool:
        for i, kept in enumerate(self._stash):
            if kept.done and kept.source == source and kept.tag == wanted.tag:
                self._posted.remove(wanted)
                self._stash.pop(i)
                self._hand_over(kept, wanted)
                return True
        return False

    @staticmethod
    def _hand_over(kept: RecvOperation, wanted: RecvOperation) -> None:
        assert kept.header is not None
        assert kept.into is not None
        wanted.open(kept.source, kept.header)
        if not wanted.done:
            assert wanted.into is not None
            COMBINE[wanted.combine](wanted.into, kept.into, wanted.into)
            wanted.close()

    def forget(self, operation: RecvOperation) -> None:
        """Nobody wants this operation's message any more. If half of it is here, the rest runs into other memory."""
        if operation in self._posted:
            self._posted.remove(operation)
            return
        assert operation.header is not None
        rest = RecvOperation(operation.waiter, self, operation.source, None, "copy", operation.tag)
        rest.early = True
        rest.header = operation.header
        rest.into = torch.empty(operation.header.shape, dtype=operation.header.dtype)
        rest.received = operation.received
        self._readers[operation.source].active = rest
