"""A slow network on one host. Messages are real. Each is done when the emulated link would have carried it.

The link model is in `costs.transfers`: each rank has one output port and one input port. The bytes pass immediately
through the rings of shared memory into memory of the receiver. The times at which sender and receiver complete
follow the emulated link, on a clock that the ranks share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from torch import Tensor

from paceline.context import Combine
from paceline.costs.link import Link
from paceline.costs.transfers import Resource, SharedLinks, arrival_order
from paceline.links import clock
from paceline.links.frames import Header
from paceline.links.memory.bells import Bells
from paceline.links.operation import Operation, Waiter
from paceline.links.port import Port, Ways
from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation, SendQueue


class EmulatedPort(Port):
    """The output port and the input port of one rank. Each carries one message at a time."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        ways: Ways,
        bells: Bells,
        on_sent: Callable[[SendOperation], None],
        on_received: Callable[[RecvOperation], None],
        *,
        links: Sequence[Link],
        shared: SharedLinks | None = None,
    ) -> None:
        """`links` has the emulated link to each rank. `shared` are cards and a switch between emulated hosts."""
        super().__init__(rank, ranks, ways, bells, on_sent, on_received)
        self._links = links
        self._shared = shared
        self._output, self._input = Resource(), Resource()
        self._landed = 0
        # A heap of messages that have not begun to arrive, by arrival order, and a list of the messages in the
        # port, in order.
        self._approaching: list[tuple[tuple[float, float, int], int, RecvOperation]] = []
        self._in_port: list[RecvOperation] = []

    # The output port

    def send(
        self, waiter: Waiter, to: int, tensor: Tensor, tag: int, numbers: tuple[float, ...] = ()
    ) -> SendOperation:
        if to == self.rank:
            return super().send(waiter, to, tensor, tag, numbers)
        operation = PacedSend(waiter, self, self._way_out(to), to, tensor, tag, numbers)
        operation.number = self._next_number()
        return operation

    def begin(self, operation: PacedSend) -> None:
        """Reserve the output port for a message, and send its bytes."""
        now_s, carry_s = clock.now(), self.carry_s(operation, operation.to)
        operation.began_s = start_s = self._output.occupy(now_s, carry_s)
        if self._shared is not None and self._shared.crosses(self.rank, operation.to):
            left_s = self._shared.leave(self.rank, now_s, operation.nbytes)
            self._output.free_s = max(self._output.free_s, left_s)
            start_s = max(start_s, self._output.free_s - self._shared.flow_s(operation.nbytes, carry_s))
        operation.ended_s = self._output.free_s
        operation.begins_s = start_s + self._links[operation.to].latency_s
        self._way_out(operation.to).queue.append(operation)

    def end(self, operation: PacedSend) -> None:
        self._on_sent(operation)

    # The input port

    def recv(
        self, waiter: Waiter, source: int, into: Tensor | None, combine: Combine, tag: int
    ) -> RecvOperation:
        return PacedRecv(waiter, self, source, into, combine, tag, self._on_received)

    def pump(self, operation: RecvOperation) -> None:
        """Read all messages that have arrived, from any rank, because each occupies the port.

        Deliver those that are due.
        """
        for source in range(self._ranks):
            self._pump_source(source, operation)
        now_s = clock.now()
        while self._approaching and self._approaching[0][0][0] <= now_s:
            self._enter(heapq.heappop(self._approaching)[2])
        due = [packet for packet in self._in_port if packet.done and packet.ended_s <= now_s]
        if due:
            self._in_port = [packet for packet in self._in_port if packet not in due]
            for packet in due:
                self._keep(packet)

    def due_s(self, operation: RecvOperation) -> float:
        """Time at which to poll again for a message that has arrived.

        It may be delivered later if others are before it.
        """
        ends_s = [packet.ended_s for packet in self._in_port if _is_for(operation, packet)]
        for (arrives_s, *_), _, packet in self._approaching:
            if _is_for(operation, packet):
                ends_s.append(self._input.end_s(arrives_s, self.carry_s(_header(packet), packet.source)))
        return min(ends_s, default=math.inf)

    def carry_s(self, message: Header | SendOperation, other: int) -> float:
        """Seconds that a message to or from another rank occupies a port."""
        return self._links[other].carry_s(message.nbytes)

    def _match(self, source: int, header: Header, waiter: Waiter) -> RecvOperation:
        """No message is delivered before its time, because a receive from any rank may still get an earlier
        message."""
        packet = RecvOperation(waiter, self, source, None, "copy", header.tag, _nothing)
        self._landed += 1
        start_s = header.begins_s - self._links[source].latency_s
        order = arrival_order(header.begins_s, start_s, source)
        heapq.heappush(self._approaching, (order, self._landed, packet))
        return packet

    def _enter(self, packet: RecvOperation) -> None:
        header = _header(packet)
        carry_s = self.carry_s(header, packet.source)
        begins_s = self._input.occupy(header.begins_s, carry_s)
        if self._shared is not None and self._shared.crosses(packet.source, self.rank):
            card_s = self._shared.enter(self.rank, header.begins_s, header.nbytes)
            self._input.free_s = max(self._input.free_s, card_s)
            begins_s = max(begins_s, self._input.free_s - carry_s)
        packet.header = header._replace(begins_s=begins_s)
        packet.ended_s = self._input.free_s
        self._in_port.append(packet)


class PacedSend(SendOperation):
    """A send. Done when the output port has carried the message."""

    __slots__ = ("_port", "_written")

    def __init__(
        self,
        waiter: Waiter,
        port: EmulatedPort,
        outbox: SendQueue,
        to: int,
        tensor: Tensor,
        tag: int,
        numbers: tuple[float, ...],
    ) -> None:
        super().__init__(waiter, outbox, to, tensor, tag, numbers, _nothing)
        self._port = port
        self._written = False
        self.nbytes = self.tensor.nbytes

    def begin(self) -> None:
        self.begun = True
        self._settle_tensor()
        self._port.begin(self)

    def poll(self) -> bool:
        if self.done:
            return True
        if not self.begun:
            self.begin()
        self._outbox.pump()
        if clock.now() >= self.ended_s:
            if not self._written:  # the receiver does not read, but the sender need not wait
                self._outbox.detach(self)
            self.done = True
            self._port.end(self)
        return self.done

    def try_detach(self) -> bool:
        if not self.poll() and not self._written:
            self._outbox.detach(self)
            self._written = True
        return True

    def close(self) -> None:
        """Finish writing: all bytes are sent. The emulated port may not have carried the message yet."""
        self._written = True

    def cancel(self) -> None:
        """A message that has begun still occupies the link."""
        if self.done:
            return
        if self.sent >= 0:
            self._port.end(self)
        if self.begun and not self._written:
            super().cancel()
        else:
            Operation.cancel(self)

    def due_s(self) -> float:
        return self.ended_s


class PacedRecv(RecvOperation):
    """A receive. Done when the input port has carried its message."""

    __slots__ = ()

    _inbox: EmulatedPort

    def open(self, source: int, header: Header) -> None:
        super().open(source, header)
        self.found_s = max(self.began_s, header.begins_s)
        self.ended_s = max(self.found_s, header.begins_s + self._inbox.carry_s(header, source))

    def due_s(self) -> float:
        return self._inbox.due_s(self)


def _header(packet: RecvOperation) -> Header:
    assert packet.header is not None
    return packet.header


def _is_for(operation: RecvOperation, packet: RecvOperation) -> bool:
    return packet.done and operation.wants(packet.source, packet.tag)


def _nothing(_operation: object) -> None:
    pass
