"""The simulated network: every rank has one port out and one port in, each carrying one message at a time.

A message of n bytes starts when its sender's port is free, keeps that port busy for n x seconds-per-byte, begins to
arrive one latency later, and keeps its receiver's port busy as long; ports in serve messages as they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.clusters.kernel import Event, Kernel
from paceline.context import ANY, Combine, Message
from paceline.costs import Link
from paceline.errors import MismatchError
from paceline.replica.sums import combine_into
from paceline.trace import Kind

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.clusters.simulated_context import SimulatedContext

__all__ = ["Network", "RecvEvent", "SendEvent"]


class Packet:
    """A message under way."""

    __slots__ = ("begins_s", "nbytes", "source", "tag", "tensor", "to", "version")

    def __init__(self, source: int, to: int, tensor: Tensor, nbytes: int, tag: int, version: int) -> None:
        self.source = source
        self.to = to
        self.tensor = tensor
        self.nbytes = nbytes
        self.tag = tag
        self.version = version
        self.begins_s = 0.0  # when its first byte enters the port in


class Network:
    """All ports, and the links between them."""

    def __init__(self, kernel: Kernel, hosts: Sequence[int], link: Link, inside: Link) -> None:
        self.kernel = kernel
        ranks = len(hosts)
        self.out_free = [0.0] * ranks
        self.in_free = [0.0] * ranks
        self.boxes: list[Mailbox] = [Mailbox() for _ in range(ranks)]
        self._hosts = hosts
        self._between = (link.latency_s, link.seconds_per_byte)
        self._inside = (inside.latency_s, inside.seconds_per_byte)
        self.uniform = len(set(hosts)) == 1 or self._inside == self._between

    def cost(self, source: int, to: int) -> tuple[float, float]:
        """Latency and seconds per byte from one rank to another."""
        if self.uniform or self._hosts[source] != self._hosts[to]:
            return self._between
        return self._inside

    def post(self, packet: Packet) -> tuple[float, float]:
        """Send; return when the message starts and when its sender's port is free again."""
        kernel, source = self.kernel, packet.source
        latency_s, per_byte_s = self.cost(source, packet.to)
        start_s = self.out_free[source]
        if start_s < kernel.now:
            start_s = kernel.now
        end_s = self.out_free[source] = start_s + packet.nbytes * per_byte_s
        if self.uniform and start_s == kernel.now:
            self._arrive(packet, start_s + latency_s)
        else:
            # Ports in are taken in the order of arrival, which is known only when the time has come.
            kernel.at(start_s + latency_s, self._arrive_now, packet)
        return start_s, end_s

    def _arrive_now(self, packet: Packet) -> None:
        self._arrive(packet, self.kernel.now)

    def _arrive(self, packet: Packet, arrival_s: float) -> None:
        to = packet.to
        begins_s = self.in_free[to]
        if begins_s < arrival_s:
            begins_s = arrival_s
        packet.begins_s = begins_s
        end_s = self.in_free[to] = begins_s + packet.nbytes * self.cost(packet.source, to)[1]
        self.kernel.at(end_s, self.boxes[to].deliver, packet)


class Mailbox:
    """What has come for a rank and is not yet received, and who waits for what has not come."""

    __slots__ = ("_anyone", "_packets", "_waiting")

    def __init__(self) -> None:
        self._packets: dict[tuple[int, int], deque[Packet]] = {}
        self._waiting: dict[tuple[int, int], deque[RecvEvent]] = {}
        self._anyone: deque[RecvEvent] = deque()

    def deliver(self, packet: Packet) -> None:
        key = (packet.source, packet.tag)
        waiting = self._waiting.get(key)
        if waiting:
            waiting.popleft().receive(packet)
            return
        if self._anyone:
            for event in self._anyone:
                if event.tag == packet.tag:
                    self._anyone.remove(event)
                    event.receive(packet)
                    return
        kept = self._packets.get(key)
        if kept is None:
            self._packets[key] = deque((packet,))
        else:
            kept.append(packet)

    def ask(self, event: RecvEvent) -> None:
        """Give the event its message, or let it wait for one."""
        if event.source == ANY:
            self._ask_anyone(event)
            return
        key = (event.source, event.tag)
        kept = self._packets.get(key)
        if kept:
            event.receive(kept.popleft())
            return
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque((event,))
        else:
            waiting.append(event)

    def _ask_anyone(self, event: RecvEvent) -> None:
        # Of several, the one that came first.
        kept = [packets for (_, tag), packets in self._packets.items() if tag == event.tag and packets]
        if kept:
            event.receive(min(kept, key=lambda packets: packets[0].begins_s).popleft())
        else:
            self._anyone.append(event)

    def forget(self, event: RecvEvent) -> None:
        if event.source == ANY:
            self._anyone.remove(event)
        else:
            self._waiting[event.source, event.tag].remove(event)


class SendEvent(Event[None]):
    """Done when the port out has carried the message."""

    __slots__ = ("_context", "_ends_s", "_packet")

    def __init__(self, context: SimulatedContext, packet: Packet) -> None:
        super().__init__()
        self._context = context
        self._packet = packet
        self._ends_s = 0.0
        self.result = None

    def start(self) -> None:
        start_s, self._ends_s = self._context.world.network.post(self._packet)
        context, nbytes = self._context, self._packet.nbytes
        context.outcome.bytes_sent += nbytes
        context.outcome.messages_sent += 1
        context.recorder.spans.append(
            (Kind.SEND, start_s, self._ends_s, self._packet.to, nbytes, context.step)
        )
        if self._ends_s <= context.world.kernel.now:
            self.done = True

    def park(self, process: Any) -> None:
        # Its end is known from the start, so no event marks it unless somebody waits for it.
        if self.waiters is None:
            self._context.world.kernel.at(self._ends_s, self._context.world.kernel.finish, self)
        super().park(process)

    def __await__(self) -> Any:
        if self.started and not self.done and self._ends_s <= self._context.world.kernel.now:
            self.done = True
        return super().__await__()

    def __str__(self) -> str:
        return f"send to rank {self._packet.to}"


class RecvEvent(Event[Message]):
    """Done when the message is there."""

    __slots__ = ("_began_s", "_combine", "_context", "_into", "source", "tag")

    def __init__(
        self, context: SimulatedContext, source: int, into: Tensor | None, combine: Combine, tag: int
    ) -> None:
        super().__init__()
        self._context = context
        self._into = into
        self._combine = combine
        self._began_s = 0.0
        self.source = source
        self.tag = tag

    def start(self) -> None:
        self._began_s = self._context.world.kernel.now
        self._context.world.network.boxes[self._context.rank].ask(self)

    def withdraw(self) -> None:
        self._context.world.network.boxes[self._context.rank].forget(self)

    def receive(self, packet: Packet) -> None:
        context = self._context
        now = context.world.kernel.now
        self.source = packet.source
        if packet.begins_s > self._began_s:
            context.recorder.spans.append(
                (Kind.WAIT, self._began_s, packet.begins_s, packet.source, 0, context.step)
            )
        start_s = max(packet.begins_s, self._began_s)
        context.recorder.spans.append(
            (Kind.RECEIVE, start_s, now, packet.source, packet.nbytes, context.step)
        )
        tensor = packet.tensor
        into = self._into
        if into is not None:
            if into.dtype != tensor.dtype or into.shape != tensor.shape:
                self.error = _mismatch(packet, context.rank, into)
            elif not into.is_meta:
                combine_into(into, tensor, self._combine)
            tensor = into
        self.result = Message(packet.source, packet.tag, packet.version, tensor)
        context.world.kernel.finish(self)

    def __str__(self) -> str:
        return f"receive from {'any rank' if self.source == ANY else f'rank {self.source}'}"


def _mismatch(packet: Packet, receiver: int, into: Tensor) -> MismatchError:
    sent, expected = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (packet.tensor, into))
    dtype = str(packet.tensor.dtype).removeprefix("torch.")
    return MismatchError(packet.source, sent, receiver, expected).about(dtype, packet.version)
