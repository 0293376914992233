"""The simulated network: every rank has one port out and one port in, each carrying one message at a time.

A message of n bytes starts when its sender's port is free, keeps that port busy for n x seconds-per-byte, begins to
arrive one latency later, and keeps its receiver's port busy as long; ports in serve messages as they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.mailbox import Mailbox
from paceline.clusters.simulated.messages import SendEvent
from paceline.costs import Link
from paceline.schedules.network import LinkCost

if TYPE_CHECKING:
    from paceline.clusters.simulated.group_run import GroupRun

__all__ = ["Disturbed", "DisturbedRun", "Network"]


class Disturbed(Exception):  # noqa: N818
    """A message was sent while a collective was being timed as a whole, which holds only if nothing else is sent."""


class DisturbedRun(Disturbed):
    """The passes and sums of a tensor group cannot be timed as a whole: see `group_run`."""


class Ports:
    """Both ports of one rank."""

    __slots__ = ("arrived", "coming", "deliver", "in_free_s", "instant_s", "out_free_s", "run")

    def __init__(self, deliver: Callable[[SendEvent], None]) -> None:
        self.deliver = deliver
        self.out_free_s = self.in_free_s = 0.0
        self.coming = 0
        """Messages on the way here whose turn at the port in is not known yet."""
        self.instant_s = -1.0
        """When messages last arrived."""
        self.arrived: SendEvent | list[SendEvent] | None = None
        """Those that arrived then, in their order: hardly ever several."""
        self.run: GroupRun | None = None
        """Who knows when these ports are free, while this rank's group is timed as a whole."""

    def enter_run(self, run: GroupRun) -> None:
        """From now on messages that arrive take their turn in the run, and none may be sent."""
        self.run = run
        self.coming += 1  # nothing can be known of a message before it arrives
        self.out_free_s = math.inf

    def leave_run(self, out_free_s: float, in_free_s: float) -> None:
        self.run = None
        self.coming -= 1
        self.out_free_s, self.in_free_s = out_free_s, in_free_s


class Network:
    """All ports, and the links between them."""

    def __init__(self, kernel: Kernel, hosts: Sequence[int], link: Link, inside: Link) -> None:
        self.kernel = kernel
        ranks = len(hosts)
        self.boxes = [Mailbox(kernel) for _ in range(ranks)]
        self.ports = [Ports(box.deliver) for box in self.boxes]
        self.under_way = 0
        """Messages that have not reached their port in."""
        self._reserved_until_s = self._last_collective_ends_s = 0.0
        self._whole_collectives = 0
        self._hosts = hosts
        self._between = (link.latency_s, link.seconds_per_byte)
        self._inside = (inside.latency_s, inside.seconds_per_byte)
        self.uniform = len(set(hosts)) == 1 or self._inside == self._between

    def cost(self, source: int, to: int) -> tuple[float, float]:
        """Latency and seconds per byte from one rank to another."""
        if self.uniform or self._hosts[source] != self._hosts[to]:
            return self._between
        return self._inside

    def close(self) -> None:
        """Forget the last messages. They refer to this network: only the garbage collector could free such a cycle."""
        self.ports.clear()

    def post(self, packet: SendEvent) -> None:
        """Send."""
        start_s = self.kernel.now
        if start_s < self._reserved_until_s:
            raise Disturbed
        in_order = self.uniform
        latency_s, per_byte_s = self._between if in_order else self.cost(packet.source, packet.to)
        packet.carry_s = carry_s = packet.nbytes * per_byte_s
        out, into = self.ports[packet.source], self.ports[packet.to]
        if out.out_free_s > start_s:
            if out.run is not None:
                raise DisturbedRun
            start_s = out.out_free_s
            in_order = False
        packet.start_s = start_s
        packet.ends_s = out.out_free_s = start_s + carry_s
        packet.begins_s = begins_s = start_s + latency_s
        if in_order and not into.coming:
            self._arrive(packet, into, begins_s)
        else:
            # Ports in are taken in the order of arrival, which is known only when the time has come.
            into.coming += 1
            self.under_way += 1
            self.kernel.at(begins_s, self._arrive_late, packet)

    def reserve(self) -> None:
        """From now on a collective is to be timed as a whole: other messages would disturb it."""
        self._whole_collectives += 1
        self._reserved_until_s = math.inf

    def release(self, at_s: float) -> None:
        """The collective will have ended at `at_s`."""
        self._whole_collectives -= 1
        self._last_collective_ends_s = max(self._last_collective_ends_s, at_s)
        if not self._whole_collectives:
            self._reserved_until_s = self._last_collective_ends_s

    @property
    def is_reserved(self) -> bool:
        return self.kernel.now < self._reserved_until_s

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
        into = self.ports[packet.to]
        into.coming -= 1
        self.under_way -= 1
        if into.run is None:
            self._arrive(packet, into, packet.begins_s)
        else:
            into.run.receive(packet)

    def _arrive(self, packet: SendEvent, into: Ports, begins_s: float) -> None:
        if begins_s == into.instant_s:
            self._arrive_together(packet, into)
            return
        into.instant_s = begins_s
        into.arrived = packet
        if into.in_free_s > begins_s:
            packet.begins_s = begins_s = into.in_free_s
        into.in_free_s = packet.delivered_s = delivered_s = begins_s + packet.carry_s
        self.kernel.at(delivered_s, into.deliver, packet)

    def _arrive_together(self, packet: SendEvent, into: Ports) -> None:
        """Of messages that arrive at one instant those of lower ranks go first, whichever was handled first."""
        assert into.arrived is not None
        together = into.arrived if isinstance(into.arrived, list) else [into.arrived]
        free_s = together[0].begins_s  # when the port was free for the first of them
        into.arrived = together = sorted([*together, packet], key=lambda each: (each.start_s, each.source))
        for each in together:
            each.begins_s = free_s
            each.delivered_s = free_s = free_s + each.carry_s
        into.in_free_s = free_s
        self.kernel.at(packet.delivered_s, into.deliver, packet)
