"""One rank's end of a link: it matches arriving messages with posted receives, over any kind of connection (way)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.context import ANY, Combine
from paceline.links.frames import Header
from paceline.links.memory.bells import Bells
from paceline.links.operation import Waiter
from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation, SendQueue
from paceline.model.sums import combine_into


class WayIn(Protocol):
    """The receiving end of the way from one rank."""

    active: RecvOperation | None
    """The receive that gets the message being read. None if no message is being read."""

    def header(self) -> Header | None:
        """Return the header of the next message; None if none has arrived."""
        ...

    def read(self, operation: RecvOperation) -> bool:
        """Move the data of the active message that has arrived. Return whether the message is complete."""
        ...


class Ways(Protocol):
    """Opens the ways between one rank and others. A port opens each once, when it is first needed."""

    def out(self, to: int) -> SendQueue: ...
    def into(self, source: int) -> WayIn: ...


class MixedWays:
    """Ways that use `near` within a host and `far` between hosts. `hosts` has the host of each rank."""

    def __init__(self, near: Ways, far: Ways, hosts: Sequence[int], rank: int) -> None:
        self._kinds = [near if host == hosts[rank] else far for host in hosts]

    def out(self, to: int) -> SendQueue:
        return self._kinds[to].out(to)

    def into(self, source: int) -> WayIn:
        return self._kinds[source].into(source)


class Port:
    """One rank's ends of the ways to and from every other rank."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        ways: Ways,
        bells: Bells,
        on_sent: Callable[[SendOperation], None],
        on_received: Callable[[RecvOperation], None],
    ) -> None:
        self.rank = rank
        self.others = tuple(r for r in range(ranks) if r != rank)
        self.device: torch.device | None = None
        """Device for messages that were sent from a device: see `Inbox`."""
        self._turn = deque(self.others)
        self._on_sent = on_sent
        self._on_received = on_received
        self._bells = bells
        self._ways = ways
        self._ranks = ranks
        self._out: dict[int, SendQueue] = {}
        self._in: dict[int, WayIn] = {}
        self._next_number = itertools.count().__next__
        self._posted: list[RecvOperation] = []
        self._kept: list[RecvOperation] = []

    def send(
        self, waiter: Waiter, to: int, tensor: Tensor, tag: int, numbers: tuple[float, ...] = ()
    ) -> SendOperation:
        if to == self.rank:
            return _OwnSend(waiter, self, tensor, tag, numbers)
        operation = SendOperation(waiter, self._way_out(to), to, tensor, tag, numbers, self._on_sent)
        operation.number = self._next_number()
        return operation

    def send_here(self, operation: SendOperation) -> None:
        """Deliver a message between two programs of this rank. It is a copy, and is not counted."""
        tensor = operation.tensor
        letter = RecvOperation(operation.waiter, self, self.rank, None, "copy", operation.tag, self._keep)
        letter.into = tensor.clone()
        shape, on_device = tuple(tensor.shape), not tensor.is_cpu
        letter.header = Header(
            tensor.dtype, shape, operation.tag, tensor.nbytes, 0, operation.numbers, on_device=on_device
        )
        letter.close()
        self._bells.ring(self.rank)  # the other program may already have been polled in this round

    def recv(
        self, waiter: Waiter, source: int, into: Tensor | None, combine: Combine, tag: int
    ) -> RecvOperation:
        return RecvOperation(waiter, self, source, into, combine, tag, self._on_received)

    def post(self, operation: RecvOperation) -> None:
        """Post a receive. Its message may already have arrived."""
        for i, kept in enumerate(self._kept):
            if operation.wants(kept.source, kept.tag):
                self._hand_over(self._kept.pop(i), operation)
                return
        self._posted.append(operation)

    def pump(self, operation: RecvOperation) -> None:
        """Read until this operation is done or no more data is available."""
        if operation.source == self.rank:
            return  # a message of this rank to itself is delivered immediately
        if operation.source != ANY:
            self._pump_source(operation.source, operation)
            return
        for _ in self.others:
            # Begin with another rank each time, because a busy rank must not starve the others.
            self._turn.rotate(-1)
            self._pump_source(self._turn[-1], operation)
            if operation.done or operation.source != ANY:
                return

    def _pump_source(self, source: int, wanted: RecvOperation) -> None:
        way = self._way_in(source)
        while not wanted.done:
            if way.active is None:
                header = way.header()
                if header is None:
                    return
                way.active = self._match(source, header, wanted.waiter)
                way.active.open(source, header)
                if way.active.done:  # the message does not fit
                    self._drop(way.active)
                into = way.active.into
                if into is not None and not into.is_cpu:
                    way.active.stage()
            active = way.active
            if not way.read(active):
                return
            way.active = None
            active.close()

    def describe(self) -> list[str]:
        """Return the state of each way, for debugging."""
        asked = [f"asked for: {operation}, tag {operation.tag}" for operation in self._posted]
        kept = [f"kept: from rank {early.source}, tag {early.tag}" for early in self._kept]
        return [*(str(way) for way in (*self._out.values(), *self._in.values())), *asked, *kept]

    def _way_out(self, to: int) -> SendQueue:
        way = self._out.get(to)
        if way is None:
            way = self._out[to] = self._ways.out(to)
        return way

    def _way_in(self, source: int) -> WayIn:
        way = self._in.get(source)
        if way is None:
            way = self._in[source] = self._ways.into(source)
        return way

    def _match(self, source: int, header: Header, waiter: Waiter) -> RecvOperation:
        """Return the first posted receive that matches the message; otherwise a new one, which stores the message."""
        for i, operation in enumerate(self._posted):
            if operation.wants(source, header.tag):
                return self._posted.pop(i)
        return RecvOperation(waiter, self, source, None, "copy", header.tag, self._keep)

    def _keep(self, early: RecvOperation) -> None:
        """Store a message that arrived before its receive was posted, or deliver it if one has been posted since."""
        for i, operation in enumerate(self._posted):
            if operation.wants(early.source, early.tag):
                self._hand_over(early, self._posted.pop(i))
                return
        self._kept.append(early)

    @staticmethod
    def _hand_over(kept: RecvOperation, wanted: RecvOperation) -> None:
        assert kept.header is not None
        assert kept.into is not None
        into = wanted.into
        if into is None:
            wanted.into = kept.into  # no other object uses this tensor
        wanted.open(kept.source, kept.header)
        if wanted.done:  # it does not fit
            return
        if into is not None:
            combine_into(into, kept.into.to(into.device), wanted.combine)
        wanted.close()

    def forget(self, operation: RecvOperation) -> None:
        """Remove a cancelled receive."""
        if operation in self._posted:
            self._posted.remove(operation)
        else:
            self._drop(operation)

    def _drop(self, operation: RecvOperation) -> None:
        """Receive the rest of this operation's message into other memory, and discard it."""
        assert operation.header is not None
        rest = RecvOperation(operation.waiter, self, operation.source, None, "copy", operation.tag, _nothing)
        rest.open(operation.source, operation.header)
        rest.received = operation.received
        self._in[operation.source].active = rest


_NOWHERE = SendQueue()
"""Operation with a result that is known immediately."""


class _OwnSend(SendOperation):
    """A message of this rank to itself: done as soon as it has begun."""

    __slots__ = ("_port",)

    def __init__(
        self, waiter: Waiter, port: Port, tensor: Tensor, tag: int, numbers: tuple[float, ...]
    ) -> None:
        super().__init__(waiter, _NOWHERE, port.rank, tensor, tag, numbers, _nothing)
        self._port = port

    def poll(self) -> bool:
        if not self.done:
            self._port.send_here(self)
            self.close()
        return self.done


def _nothing(_operation: object) -> None:
    pass
