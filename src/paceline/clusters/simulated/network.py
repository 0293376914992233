"""Simulated network: every rank has one output port and one input port. The link model is in `costs.transfers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.mailbox import Mailbox
from paceline.clusters.simulated.messages import SendEvent
from paceline.costs import Link
from paceline.costs.slow_links import SlowLinks
from paceline.costs.transfers import Resource, SharedLinks, arrival_order
from paceline.schedules.collectives.network import LinkCost

if TYPE_CHECKING:
    from paceline.clusters.simulated.group_operation import GroupOperation

PortState: TypeAlias = tuple[float, float, float, SendEvent | list[SendEvent] | None]
"""Times at which output port and input port are free, time of the last arrivals, and these messages."""


class Ports:
    """Both ports of one rank."""

    __slots__ = ("arrived", "claim", "claims", "coming", "deliver", "instant_s", "receiver", "sender")

    def __init__(self, deliver: Callable[[SendEvent], None], *, half_duplex: bool = False) -> None:
        """With `half_duplex` both ports are one: a processor that moves all bytes itself."""
        self.deliver = deliver
        self.sender = Resource()
        self.receiver = self.sender if half_duplex else Resource()
        self.coming = 0
        """Messages in flight to this rank that have not been served by the input port, plus claims of that port."""
        self.instant_s = -1.0
        """When messages last arrived."""
        self.arrived: SendEvent | list[SendEvent] | None = None
        """Messages that arrived at that time, in order. Rarely more than one."""
        self.claim: GroupOperation | None = None
        """Group operation that claims the output port. The port then appears to be occupied permanently."""
        self.claims: list[GroupOperation] = []
        """Group operations that claim the input port, in order of age."""

    def state(self, out_free_s: float) -> PortState:
        """Return the present state, with an output port that is free at `out_free_s`."""
        return out_free_s, self.receiver.free_s, self.instant_s, _copied(self.arrived)

    def copy(self, state: PortState) -> Ports:
        """Return unclaimed ports of the same rank in another state."""
        made = Ports(self.deliver)
        made.sender.free_s, made.receiver.free_s, made.instant_s, arrived = state
        made.arrived = _copied(arrived)
        return made


def _copied(arrived: SendEvent | list[SendEvent] | None) -> SendEvent | list[SendEvent] | None:
    return list(arrived) if isinstance(arrived, list) else arrived


class Network:
    """All ports, and the links between them."""

    def __init__(
        self,
        kernel: Kernel,
        hosts: Sequence[int],
        link: Link,
        inside: Link,
        slow: SlowLinks | None = None,
        shared: SharedLinks | None = None,
        *,
        half_duplex: bool = False,
    ) -> None:
        """`link` connects hosts, or all ranks if there is one host. `slow` has the pairs with another link.

        `shared` are the cards and the switch between hosts. None if they are never a bottleneck. With `half_duplex` a
        rank cannot send and receive at the same time.
        """
        self.kernel = kernel
        self._at = kernel.at
        ranks = len(hosts)
        self.boxes = [Mailbox(kernel) for _ in range(ranks)]
        self._half_duplex = half_duplex
        self.ports = [Ports(box.deliver, half_duplex=half_duplex) for box in self.boxes]
        self.operations: set[GroupOperation] = set()
        """Group operations that are timed as a whole and have not ended."""
        self.is_closed = False
        self._hosts = hosts
        self._between = (link.latency_s, link.seconds_per_byte)
        near = inside if len(set(hosts)) > 1 else link
        self._inside = (near.latency_s, near.seconds_per_byte)
        self._slow = {pair: (each.latency_s, each.seconds_per_byte) for pair, each in (slow or {}).items()}
        self._shared = shared
        links = {link, near, *(slow or {}).values()}
        self._has_message_costs = any(each.message_s for each in links)
        self._links = (link, near, slow or {})
        self.uniform = self._inside == self._between and not self._slow and shared is None

    def cost(self, source: int, to: int) -> tuple[float, float]:
        """Return the latency and the seconds per byte from one rank to another."""
        if self.uniform:
            return self._between
        usual = self._between if self._hosts[source] != self._hosts[to] else self._inside
        return self._slow.get((source, to) if source < to else (to, source), usual)

    def _message_s(self, source: int, to: int) -> float:
        """Return the seconds that each message between two ranks occupies its ports, besides the time of its bytes."""
        link, near, slow = self._links
        usual = link if self._hosts[source] != self._hosts[to] else near
        return slow.get((source, to) if source < to else (to, source), usual).message_s

    def close(self) -> None:
        """Drop the ports. They refer to this network, a cycle that only the garbage collector could free."""
        self.is_closed = True
        self.ports.clear()
        self.operations.clear()

    def can_isolate(self, members: Sequence[int]) -> bool:
        """Return whether an operation of these ranks can be timed as a whole.

        It must share no card with other ranks, single messages must have no cost besides that of their bytes, and the
        ports of a rank must be independent.
        """
        if self._has_message_costs or self._half_duplex:
            return False
        return self._shared is None or len({self._hosts[rank] for rank in members}) == 1

    def post(self, packet: SendEvent) -> None:
        """Send a message."""
        now_s, in_order = self.kernel.now, self.uniform
        latency_s, per_byte_s = self._between if in_order else self.cost(packet.source, packet.to)
        carry_s = packet.nbytes * per_byte_s
        if self._has_message_costs:
            carry_s += self._message_s(packet.source, packet.to)
        packet.carry_s = carry_s
        out, into = self.ports[packet.source], self.ports[packet.to]
        packet.start_s = start_s = out.sender.occupy(now_s, carry_s)
        if start_s != now_s:
            if out.claim is not None:
                out.claim.fall_back()
                packet.start_s = start_s = out.sender.occupy(now_s, carry_s)
            in_order = False
        if self._shared is not None and self._shared.crosses(packet.source, packet.to):
            start_s = self._leave_host(packet, out.sender, self._shared)
        packet.ends_s = out.sender.free_s
        if in_order and not into.coming:
            self._arrive(packet, into, start_s + latency_s)
        else:
            # Input ports serve messages in order of arrival, which is known only at the time of arrival.
            packet.begins_s = begins_s = start_s + latency_s
            into.coming += 1
            self._at(begins_s, self._arrive_late, packet)

    def _leave_host(self, packet: SendEvent, sender: Resource, shared: SharedLinks) -> float:
        """Let a message pass the card and the switch. Return when its first byte leaves."""
        left_s = shared.leave(packet.source, self.kernel.now, packet.nbytes)
        sender.free_s = max(sender.free_s, left_s)
        return max(packet.start_s, sender.free_s - shared.flow_s(packet.nbytes, packet.carry_s))

    def arrive(self, packet: SendEvent) -> None:
        """Give a message that arrives now its turn at the input port."""
        self._arrive(packet, self.ports[packet.to], packet.begins_s)

    def latencies(self, group: np.ndarray) -> LinkCost:
        """Return the latencies between the ranks of a group, for the schedule timer."""
        return self._costs(group, 0)

    def seconds_per_byte(self, group: np.ndarray) -> LinkCost:
        return self._costs(group, 1)

    def _costs(self, group: np.ndarray, which: int) -> LinkCost:
        between, inside = self._between[which], self._inside[which]
        if self.uniform:
            return between
        hosts = np.array(self._hosts)[group]

        def cost(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
            costs = np.where(hosts[sources] == hosts[targets], inside, between)
            low = np.minimum(group[sources], group[targets])
            high = np.maximum(group[sources], group[targets])
            for (one, other), slow in self._slow.items():
                costs[(low == one) & (high == other)] = slow[which]
            return costs

        return cost

    def _arrive_late(self, packet: SendEvent) -> None:
        into = self.ports[packet.to]
        if self._shared is not None and self._shared.crosses(packet.source, packet.to):
            packet.card_s = self._shared.enter(packet.to, packet.begins_s, packet.nbytes)
        if not into.claims:
            into.coming -= 1
            self._arrive(packet, into, packet.begins_s)
            return
        for operation in tuple(into.claims):
            if operation.is_disturbed_by(packet):
                operation.fall_back()
        into.coming -= 1  # not earlier, so that operations that fall back do not overtake this message
        if into.claims:
            into.claims[0].receive(packet)
        else:
            self._arrive(packet, into, packet.begins_s)

    def _arrive(self, packet: SendEvent, into: Ports, begins_s: float) -> None:
        if begins_s == into.instant_s and not self._half_duplex:
            self._arrive_together(packet, into)
            return
        into.instant_s = begins_s
        into.arrived = packet
        receiver = into.receiver
        packet.begins_s = receiver.occupy(begins_s, packet.carry_s)
        if packet.card_s > receiver.free_s:
            receiver.free_s = packet.card_s
        packet.delivered_s = delivered_s = receiver.free_s
        self._at(delivered_s, into.deliver, packet)

    def _arrive_together(self, packet: SendEvent, into: Ports) -> None:
        """Order messages that arrive at the same time, independent of the order of the calls."""
        assert into.arrived is not None
        if not isinstance(into.arrived, list):
            into.arrived = [into.arrived]
        together, receiver, now_s = into.arrived, into.receiver, into.instant_s
        last = together[-1]
        if (packet.start_s, packet.source) >= (last.start_s, last.source):
            new: Sequence[SendEvent] = (packet,)  # the others keep their turns
            receiver.free_s = last.delivered_s
            together.append(packet)
        else:
            receiver.free_s = together[0].begins_s  # when the port was free for the first of these messages
            together.append(packet)
            together.sort(key=lambda each: arrival_order(now_s, each.start_s, each.source))
            new = together
        for each in new:
            each.begins_s = receiver.occupy(now_s, each.carry_s)
            receiver.free_s = max(receiver.free_s, each.card_s)
            each.delivered_s = receiver.free_s
        self._at(packet.delivered_s, into.deliver, packet)
