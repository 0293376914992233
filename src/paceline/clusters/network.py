"""The simulated network: every rank has one port out and one port in, each carrying one message at a time.

A message of n bytes starts when its sender's port is free, keeps that port busy for n x seconds-per-byte, begins to
arrive one latency later, and keeps its receiver's port busy as long; ports in serve messages as they arrive.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.clusters.kernel import Event, Kernel, Waiter
from paceline.context import ANY, Combine, Message
from paceline.costs import Link
from paceline.errors import MismatchError
from paceline.replica.sums import combine_into
from paceline.schedules.network import LinkCost
from paceline.trace import Kind

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.clusters.simulated_context import SimulatedContext

__all__ = ["Disturbed", "Network", "RecvEvent", "SendEvent"]

# As plain numbers: an enumeration costs more in arrays of many spans.
_SEND, _RECEIVE, _WAIT = int(Kind.SEND), int(Kind.RECEIVE), int(Kind.WAIT)


class Disturbed(Exception):  # noqa: N818
    """A message was sent while a collective was being timed as a whole, which holds only if nothing else is sent."""


class Network:
    """All ports, and the links between them."""

    def __init__(self, kernel: Kernel, hosts: Sequence[int], link: Link, inside: Link) -> None:
        self.kernel = kernel
        ranks = len(hosts)
        self.out_free = [0.0] * ranks
        self.in_free = [0.0] * ranks
        self.boxes = [Mailbox(kernel) for _ in range(ranks)]
        self.deliver = [box.deliver for box in self.boxes]
        self.coming = [0] * ranks
        """Messages on the way to each rank whose turn at its port in is not known yet."""
        self.under_way = 0
        """Messages that have not reached their port in."""
        # Of each port in: when messages last arrived, which, and when it would have been free without them.
        self._instant_s = [-1.0] * ranks
        self._arrived: list[list[SendEvent]] = [[] for _ in range(ranks)]
        self._free_before_s = [0.0] * ranks
        self._reserved_until_s = self._last_meeting_ends_s = 0.0
        self._meetings = 0
        self._hosts = hosts
        self._between = (link.latency_s, link.seconds_per_byte)
        self._inside = (inside.latency_s, inside.seconds_per_byte)
        self.uniform = len(set(hosts)) == 1 or self._inside == self._between

    def cost(self, source: int, to: int) -> tuple[float, float]:
        """Latency and seconds per byte from one rank to another."""
        if self.uniform or self._hosts[source] != self._hosts[to]:
            return self._between
        return self._inside

    def post(self, packet: SendEvent) -> float:
        """Send; return when the message starts. Its `ends_s` is when its sender's port is free again."""
        source, start_s = packet.source, self.kernel.now
        if start_s < self._reserved_until_s:
            raise Disturbed
        uniform = self.uniform
        latency_s, per_byte_s = self._between if uniform else self.cost(source, packet.to)
        packet.carry_s = carry_s = packet.nbytes * per_byte_s
        if self.out_free[source] > start_s:
            start_s = self.out_free[source]
            uniform = False
        packet.ends_s = self.out_free[source] = start_s + carry_s
        packet.start_s = start_s
        packet.begins_s = start_s + latency_s
        if uniform and not self.coming[packet.to]:
            self._arrive(packet)
        else:
            # Ports in are taken in the order of arrival, which is known only when the time has come.
            self.coming[packet.to] += 1
            self.under_way += 1
            self.kernel.at(packet.begins_s, self._arrive_late, packet)
        return start_s

    def reserve(self) -> None:
        """From now on a collective is to be timed as a whole: other messages would disturb it."""
        self._meetings += 1
        self._reserved_until_s = math.inf

    def release(self, at_s: float) -> None:
        """It will have ended by then."""
        self._meetings -= 1
        self._last_meeting_ends_s = max(self._last_meeting_ends_s, at_s)
        if not self._meetings:
            self._reserved_until_s = self._last_meeting_ends_s

    def latencies(self, group: np.ndarray) -> LinkCost:
        """From each rank of a group to each other, as the timer of schedules takes it."""
        return self._costs(group, 0)

    def seconds_per_byte(self, group: np.ndarray) -> LinkCost:
        return self._costs(group, 1)

    def _costs(self, group: np.ndarray, which: int) -> LinkCost:
        between, inside = self._between[which], self._inside[which]
        if self.uniform:
            return between
        hosts = np.array(self._hosts)[group]

        def cost(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
            return np.where(hosts[sources] == hosts[targets], inside, between)

        return cost

    def _arrive_late(self, packet: SendEvent) -> None:
        self.coming[packet.to] -= 1
        self.under_way -= 1
        self._arrive(packet)

    def _arrive(self, packet: SendEvent) -> None:
        to, begins_s = packet.to, packet.begins_s
        if begins_s == self._instant_s[to]:
            self._arrive_together(packet)
            return
        self._instant_s[to] = begins_s
        self._free_before_s[to] = self.in_free[to]
        self._arrived[to] = [packet]
        if self.in_free[to] > begins_s:
            packet.begins_s = begins_s = self.in_free[to]
        self.in_free[to] = packet.delivered_s = begins_s + packet.carry_s
        self.kernel.at(packet.delivered_s, self.deliver[to], packet)

    def _arrive_together(self, packet: SendEvent) -> None:
        """Of messages that arrive at one instant those of lower ranks go first, whoever happened to be asked first."""
        to, arrival_s = packet.to, packet.begins_s
        together = self._arrived[to]
        together.append(packet)
        together.sort(key=lambda each: (each.start_s, each.source))
        free_s = self._free_before_s[to]
        for each in together:
            each.begins_s = max(arrival_s, free_s)
            each.delivered_s = free_s = each.begins_s + each.carry_s
        self.in_free[to] = free_s
        self.kernel.at(packet.delivered_s, self.deliver[to], packet)


class Mailbox:
    """What has come for a rank and is not yet received, and who waits for what has not come."""

    __slots__ = ("_anyone", "_by_tag", "_kernel", "_packets", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._packets: dict[tuple[int, int], deque[SendEvent]] = {}
        self._by_tag: dict[int, deque[SendEvent]] = {}
        self._waiting: dict[tuple[int, int], deque[RecvEvent]] = {}
        self._anyone: dict[int, deque[RecvEvent]] = {}

    def deliver(self, packet: SendEvent) -> None:
        if packet.delivered_s > self._kernel.now:  # another that arrived at the same instant went first
            self._kernel.at(packet.delivered_s, self.deliver, packet)
            return
        key = (packet.source, packet.tag)
        waiting = self._waiting.get(key) or self._anyone.get(packet.tag)
        if waiting:
            waiting.popleft().receive(packet)
        else:
            self._packets.setdefault(key, deque()).append(packet)
            self._by_tag.setdefault(packet.tag, deque()).append(packet)

    def ask(self, event: RecvEvent) -> None:
        """Give the event its message, or let it wait for one."""
        packet = self._take(event.source, event.tag)
        if packet is not None:
            event.receive(packet)
        elif event.source == ANY:
            self._anyone.setdefault(event.tag, deque()).append(event)
        else:
            self._waiting.setdefault((event.source, event.tag), deque()).append(event)

    def _take(self, source: int, tag: int) -> SendEvent | None:
        """The packet that came first. It stays in the other queue that holds it, marked, until that one meets it."""
        queue = self._by_tag.get(tag) if source == ANY else self._packets.get((source, tag))
        while queue:
            packet = queue.popleft()
            if not packet.taken:
                packet.taken = True
                return packet
        return None

    def forget(self, event: RecvEvent) -> None:
        if event.source == ANY:
            self._anyone[event.tag].remove(event)
        else:
            self._waiting[event.source, event.tag].remove(event)


class SendEvent(Event[None]):
    """A message under way. Done when the port out has carried it."""

    __slots__ = (
        "_context",
        "_ended",
        "begins_s",
        "carry_s",
        "delivered_s",
        "ends_s",
        "nbytes",
        "note",
        "source",
        "start_s",
        "tag",
        "taken",
        "tensor",
        "to",
        "version",
    )

    def __init__(
        self, context: SimulatedContext, to: int, tensor: Tensor, tag: int, version: int, note: float
    ) -> None:
        self._ended = self.started = False
        self.error = self.waiters = None
        self.result = None
        self._context = context
        self.source = context.rank
        self.to = to
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self.tag = tag
        self.version = version
        self.note = note
        self.taken = False
        # Set when it is sent: when it enters the port in, when it has left the port out, how long each carries it.
        self.start_s = self.begins_s = self.ends_s = self.carry_s = self.delivered_s = 0.0

    def start(self) -> None:
        context, tensor = self._context, self.tensor
        if not tensor.is_meta:  # the sender may overwrite its tensor before the message is delivered
            self.tensor = tensor.clone()
        start_s = context.network.post(self)
        outcome = context.outcome
        outcome.bytes_sent += self.nbytes
        outcome.messages_sent += 1
        context.recorder.spans.append((_SEND, start_s, self.ends_s, self.to, self.nbytes, context.step))

    # Its end is known from the start, so no event marks it unless somebody waits for it.

    @property
    def done(self) -> bool:
        return self._ended or (self.started and self.ends_s <= self._context.kernel.now)

    @done.setter
    def done(self, done: bool) -> None:
        self._ended = done

    def park(self, waiter: Waiter) -> None:
        if self.waiters is None:
            self._context.kernel.at(self.ends_s, self._context.kernel.finish, self)
        super().park(waiter)

    def __str__(self) -> str:
        return f"send to rank {self.to}"


class RecvEvent(Event[Message]):
    """Done when the message is there."""

    __slots__ = ("_began_s", "_combine", "_context", "_into", "source", "tag")

    def __init__(
        self, context: SimulatedContext, source: int, into: Tensor | None, combine: Combine, tag: int
    ) -> None:
        self.done = self.started = False
        self.error = self.waiters = None
        self._context = context
        self._into = into
        self._combine = combine
        self._began_s = 0.0
        self.source = source
        self.tag = tag

    def start(self) -> None:
        context = self._context
        self._began_s = context.kernel.now
        context.network.boxes[context.rank].ask(self)

    def withdraw(self) -> None:
        self._context.network.boxes[self._context.rank].forget(self)

    def receive(self, packet: SendEvent) -> None:
        context = self._context
        began_s, begins_s, source = self._began_s, packet.begins_s, packet.source
        self.source = source
        spans = context.recorder.spans
        if begins_s > began_s:
            spans.append((_WAIT, began_s, begins_s, source, 0, context.step))
            began_s = begins_s
        spans.append((_RECEIVE, began_s, context.kernel.now, source, packet.nbytes, context.step))
        self.result = Message(source, packet.tag, packet.version, self._combined(packet), packet.note)
        context.kernel.finish(self)

    def _combined(self, packet: SendEvent) -> Tensor:
        tensor, into = packet.tensor, self._into
        if into is None or into is tensor:
            return tensor
        if into.dtype != tensor.dtype or into.shape != tensor.shape:
            self.error = _mismatch(packet, self._context.rank, into)
        elif not into.is_meta:
            combine_into(into, tensor, self._combine)
        return into

    def __str__(self) -> str:
        return f"receive from {'any rank' if self.source == ANY else f'rank {self.source}'}"


def _mismatch(packet: SendEvent, receiver: int, into: Tensor) -> MismatchError:
    sent, expected = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (packet.tensor, into))
    dtype = str(packet.tensor.dtype).removeprefix("torch.")
    return MismatchError(packet.source, sent, receiver, expected).about(dtype, packet.version)
