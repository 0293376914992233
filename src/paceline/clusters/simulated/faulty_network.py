"""A simulated network with ranks that may die. It tracks the messages in flight of each rank.

A message that has left its sender's port arrives, even if the sender dies. A message that has not left it completely
never arrives. If such a message had begun to arrive, it occupies its receiver's port for its full time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.mailbox import Mailbox
from paceline.clusters.simulated.messages import SendEvent
from paceline.clusters.simulated.network import Network
from paceline.costs import Link
from paceline.costs.slow_links import SlowLinks
from paceline.costs.transfers import SharedLinks
from paceline.faults import Cut


class _Cut(NamedTuple):
    start_s: float
    end_s: float
    ranks: set[int]


class LossyNetwork(Network):
    """Network of a run with faults. It needs more real time for each message."""

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
        super().__init__(kernel, hosts, link, inside, slow, shared, half_duplex=half_duplex)
        for ports, box in zip(self.ports, self.boxes, strict=True):
            ports.deliver = partial(self._deliver, box)
        self._carried: list[set[SendEvent]] = [set() for _ in self.boxes]
        """Messages that have not arrived yet, by sender."""
        self._tell: dict[int, Callable[[int], None]] = {}
        """For each lost rank: function to call when its last message to a rank has arrived."""
        self._cuts: list[_Cut] = []
        self.is_uneven = False
        """Whether a rank may be paused or slowed down. Operations of groups are then not timed as a whole."""

    def post(self, packet: SendEvent) -> None:
        super().post(packet)
        if packet.source not in self._tell:
            self._carried[packet.source].add(packet)

    def close(self) -> None:
        super().close()
        self._cuts.clear()
        self._carried.clear()
        self._tell.clear()

    def can_isolate(self, members: Sequence[int]) -> bool:
        if self.is_uneven:
            return False
        return super().can_isolate(members) and self._tell.keys().isdisjoint(members)

    def cut(self, fault: Cut) -> None:
        """Hold back what would begin to arrive while these ranks are cut off, until the end of the cut."""
        self.uniform = False  # so that each message looks at the cuts when it begins to arrive
        self._cuts.append(_Cut(fault.at_s, fault.at_s + fault.seconds_s, set(fault.side)))

    def drop_held(self, rank: int) -> None:
        """Drop the messages of a rank that is lost because it is cut off. Another process of it is not cut off."""
        now_s = self.kernel.now
        self._carried[rank] = {
            packet
            for packet in self._carried[rank]
            if packet.begins_s < now_s or not self._held_until_s(packet, now_s)
        }
        for cut in self._cuts:
            if cut.start_s <= now_s:
                cut.ranks.discard(rank)

    def _held_until_s(self, packet: SendEvent, now_s: float) -> float:
        """Return when the last cut between two ranks ends. 0 if there is none now."""
        ends_s = [
            cut.end_s
            for cut in self._cuts
            if cut.start_s <= now_s < cut.end_s and (packet.source in cut.ranks) != (packet.to in cut.ranks)
        ]
        return max(ends_s, default=0.0)

    def fall_back(self, rank: int) -> None:
        """Continue all operations of a rank message by message."""
        for operation in sorted(self.operations, key=lambda each: each.number):
            if rank in operation.members:
                operation.fall_back()

    def silence(self, rank: int, tell: Callable[[int], None]) -> None:
        """Handle the death of a rank. `tell(to)` is called for each rank when no message to it is in flight."""
        left = {packet for packet in self._carried[rank] if packet.ends_s <= self.kernel.now}
        self._carried[rank], self._tell[rank] = left, tell
        later = {packet.to for packet in left}
        for to in range(len(self.boxes)):
            if to not in later:
                tell(to)

    def restore(self, rank: int) -> None:
        """Let another process of a dead rank send."""
        self._tell.pop(rank, None)

    def _arrive_late(self, packet: SendEvent) -> None:
        if packet in self._carried[packet.source]:
            until_s = self._held_until_s(packet, self.kernel.now) if self._cuts else 0.0
            if until_s:
                packet.begins_s = until_s
                self.kernel.at(until_s, self._arrive_late, packet)
                return
            super()._arrive_late(packet)
        else:
            self.ports[packet.to].coming -= 1

    def _deliver(self, box: Mailbox, packet: SendEvent) -> None:
        # Another message that arrived at the same time is served first.
        if packet.delivered_s > self.kernel.now:
            self.kernel.at(packet.delivered_s, partial(self._deliver, box), packet)
            return
        carried = self._carried[packet.source]
        if packet not in carried:
            return
        carried.remove(packet)
        box.deliver(packet)
        if packet.source in self._tell and all(other.to != packet.to for other in carried):
            self._tell[packet.source](packet.to)
