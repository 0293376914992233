"""A simulated network whose ranks may die: it knows which messages are under way, and of whom.

What has left its sender's port arrives, whatever becomes of the sender. What has not left it entirely never does. If
such a message had begun to arrive, it holds its receiver's port for as long as all of it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.mailbox import Mailbox
from paceline.clusters.simulated.messages import SendEvent
from paceline.clusters.simulated.network import Network
from paceline.costs import Link

__all__ = ["LossyNetwork"]


class LossyNetwork(Network):
    """Only runs with faults have one: it costs more for each message."""

    def __init__(self, kernel: Kernel, hosts: Sequence[int], link: Link, inside: Link) -> None:
        super().__init__(kernel, hosts, link, inside)
        for ports, box in zip(self.ports, self.boxes, strict=True):
            ports.deliver = partial(self._deliver, box)
        self._carried: list[set[SendEvent]] = [set() for _ in self.boxes]
        """By rank: its messages that have not arrived yet."""
        self._tell: dict[int, Callable[[int], None]] = {}
        """By lost rank: whom to call when the last of its messages to a rank has arrived."""

    def post(self, packet: SendEvent) -> None:
        super().post(packet)
        if packet.source not in self._tell:
            self._carried[packet.source].add(packet)

    def close(self) -> None:
        super().close()
        self._carried.clear()
        self._tell.clear()

    def silence(self, rank: int, tell: Callable[[int], None]) -> None:
        """A rank dies. `tell(to)` is called for each rank, once nothing of the lost rank is on its way there."""
        left = {packet for packet in self._carried[rank] if packet.ends_s <= self.kernel.now}
        self._carried[rank], self._tell[rank] = left, tell
        later = {packet.to for packet in left}
        for to in range(len(self.boxes)):
            if to not in later:
                tell(to)

    def _arrive_late(self, packet: SendEvent) -> None:
        if packet in self._carried[packet.source]:
            super()._arrive_late(packet)
        else:
            self.ports[packet.to].coming -= 1
            self.under_way -= 1

    def _deliver(self, box: Mailbox, packet: SendEvent) -> None:
        if packet.delivered_s > self.kernel.now:  # another that arrived at the same instant went first
            self.kernel.at(packet.delivered_s, partial(self._deliver, box), packet)
            return
        carried = self._carried[packet.source]
        if packet not in carried:
            return
        carried.remove(packet)
        box.deliver(packet)
        if packet.source in self._tell and all(other.to != packet.to for other in carried):
            self._tell[packet.source](packet.to)
