"""Where the ranks of a mesh are, and what their messages cost.

The costs follow the link model (`costs.transfers`). Ranks of one host that send to other hosts at the same time share
its network card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from paceline.clusters.simulated.simulated import Simulated
from paceline.collectives.patterns import choose_schedule
from paceline.costs.fabric import Fabric
from paceline.schedules.collectives import group_plan
from paceline.schedules.collectives.network import PerMessage
from paceline.schedules.collectives.timing import time_schedule
from paceline.schedules.pipeline.timing import Message

_RING_RANKS = 64
"""Largest group for which `auto` selects the ring: see `collectives.choose_algorithm`."""


@dataclass(frozen=True)
class Places:
    """A mesh of data x pipeline x tensor ranks on the hosts of a cluster. Neighbours in rank are a tensor group."""

    cluster: Simulated
    data: int = 1
    stages: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.stages * self.tensor

    def rank(self, row: int, stage: int, position: int = 0) -> int:
        return (row * self.stages + stage) * self.tensor + position

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """Host of each rank."""
        return self._fabric.place(self.cluster.workers, self.cluster.workers)

    def host(self, rank: int) -> int:
        return self.hosts[rank]

    @cached_property
    def _fabric(self) -> Fabric:
        return self.cluster.fabric

    @cached_property
    def per_host(self) -> int:
        """Largest number of ranks on one host."""
        return max(Counter(self.hosts).values())

    @cached_property
    def _shared_s(self) -> tuple[float, float]:
        """Seconds per byte of a card and of the switch."""
        return self._fabric.seconds_per_byte(self.hosts)

    def message(self, one: int, other: int, nbytes: float, senders: int) -> Message:
        """Return the costs of a message, while `senders` ranks of the host send to other hosts."""
        if self.host(one) == self.host(other):
            link = self.cluster.between if self.cluster.hosts == 1 else self.cluster.memory
            return link.latency_s, nbytes * link.seconds_per_byte
        link, (card_s, switch_s) = self.cluster.between, self._shared_s
        everybody = senders * self._fabric.count
        per_byte_s = max(link.seconds_per_byte, senders * card_s, everybody * switch_s)
        return link.latency_s, nbytes * per_byte_s

    def between_stages(self, stage: int, nbytes: float) -> Message:
        """Return the costs of the messages from a stage to the next one. Each rank sends to its counterpart."""
        a, b = self.rank(0, stage), self.rank(0, (stage + 1) % self.stages)
        return self.message(a, b, nbytes, min(self.tensor, self.per_host))

    # Collectives

    def tensor_members(self, stage: int) -> list[int]:
        first = self.rank(0, stage)
        return list(range(first, first + self.tensor))

    def data_members(self, stage: int) -> list[int]:
        return [self.rank(row, stage) for row in range(self.data)]

    def ring_s(self, members: Sequence[int], nbytes: float, passes: int, groups: int = 1) -> float:
        """Return the seconds of a ring of `nbytes` bytes: 2 passes for an all-reduce, 1 for one of its halves.

        In each round a rank sends a chunk to the next one. The rounds of one rank follow those of its neighbour, so a
        round takes the mean of all links, or the time of the busiest port if that is longer. `groups` rings of ranks
        of the same hosts run at the same time.
        """
        size = len(members)
        if size < 2 or not nbytes:
            return 0.0
        rounds = passes * (size - 1)
        pairs = list(zip(members, [*members[1:], members[0]], strict=True))
        hosts = self.hosts
        between = [pair for pair in pairs if hosts[pair[0]] != hosts[pair[1]]]
        inside = next((pair for pair in pairs if hosts[pair[0]] == hosts[pair[1]]), None)
        kinds = [(inside, size - len(between)), (between[0] if between else None, len(between))]
        hops = [(self.message(*pair, nbytes / size, groups), count) for pair, count in kinds if pair]
        mean_s = sum((latency + carry) * count for (latency, carry), count in hops) / size
        return rounds * max(mean_s, *(carry for (_, carry), _ in hops))

    def data_groups(self) -> int:
        """Return how many data groups have a member on a host: their rings share its network card."""
        return min(self.stages * self.tensor, self.per_host)

    def sum_s(self, stage: int, nbytes: float, algorithm: str) -> float:
        """Return the seconds in which the rows sum the gradients of a stage."""
        members = self.data_members(stage)
        if len(members) < 2 or not nbytes:
            return 0.0
        hosts = [self.host(rank) for rank in members]
        if algorithm == "auto":
            algorithm = chosen_algorithm(hosts, round(nbytes))
        if algorithm == "ring":
            return self.ring_s(members, nbytes, 2, self.data_groups())
        senders = self.per_host if algorithm == "hierarchical" else self.data_groups()
        near, far = (
            self.message(members[0], other, 1.0, senders) for other in (members[0], _far(members, hosts))
        )
        # Stages whose ranks are spread in the same way have equal times.
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        spread = tuple(numbers[host] for host in hosts)
        return _scheduled_s(algorithm, spread, round(nbytes), near, far)


def chosen_algorithm(hosts: Sequence[int], nbytes: int) -> str:
    """Return the algorithm that `auto` selects for a run with ranks on these hosts."""
    if 1 < len(set(hosts)) < len(hosts):
        return "hierarchical"
    return "ring" if len(hosts) <= _RING_RANKS else choose_schedule(len(hosts), nbytes)


@lru_cache(maxsize=1024)
def _scheduled_s(algorithm: str, hosts: tuple[int, ...], nbytes: int, near: Message, far: Message) -> float:
    """Time an all-reduce message by message. `near` and `far` are the costs of a byte within and between hosts."""
    options = {"hosts": hosts} if algorithm == "hierarchical" else {}
    plan = group_plan("all-reduce", algorithm, len(hosts), **options)
    ids = np.array(hosts)

    def of(place: int) -> PerMessage:
        return lambda sources, targets: np.where(ids[sources] == ids[targets], near[place], far[place])

    timing = time_schedule(
        plan, length=nbytes, itemsize=1, arrivals_s=0.0, latency_s=of(0), seconds_per_byte=of(1)
    )
    return float(timing.finish_s.max())


def _far(members: Sequence[int], hosts: Sequence[int]) -> int:
    """Return a member on another host than the first one; the first if there is none."""
    return next((rank for rank, host in zip(members, hosts, strict=True) if host != hosts[0]), members[0])
