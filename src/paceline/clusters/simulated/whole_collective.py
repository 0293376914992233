"""Rings of many simulated ranks, timed as a whole instead of message by message.

It gives the same seconds, which holds only while nothing else uses the ports meanwhile. Where something does,
`Disturbed` is raised, and the cluster runs the job again message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paceline.clusters.simulated.kernel import Event
from paceline.clusters.simulated.network import Disturbed
from paceline.context import Combine
from paceline.errors import MismatchError
from paceline.replica.sums import combine_into
from paceline.schedules.collective import Collective
from paceline.schedules.count import Traffic, count
from paceline.schedules.timing import time_schedule
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.rank.groups import Group
    from paceline.clusters.simulated.context import SimulatedContext

__all__ = ["MANY", "PartEvent", "WholeCollective", "suits"]

MANY = 32
"""Ranks from which it pays to time a collective as a whole."""

_ROUNDING = 1e-9


def suits(collective: Collective) -> bool:
    """Rings only: they have so many messages that it pays, and no rank can end one before all have come."""
    return collective.size >= MANY and collective.algorithm == "ring"


class PartEvent(Event[None]):
    """One rank's part in a collective that is timed as a whole."""

    __slots__ = ("_group", "_whole", "arrival_s", "collective", "combine", "context", "data")

    _whole: WholeCollective

    def __init__(
        self,
        context: SimulatedContext,
        group: Group,
        collective: Collective,
        data: Tensor,
        combine: Combine,
    ) -> None:
        super().__init__()
        self.context = context
        self._group = group
        self.collective = collective
        self.data = data
        self.combine = combine
        self.arrival_s = 0.0
        self.result = None

    def start(self) -> None:
        """Counted now, not when it is made: the ranks' parts belong together in the order in which they begin."""
        group, under_way = self._group, self.context.world.under_way
        key = group.base | group.next_collective()
        if key not in under_way:
            under_way[key] = WholeCollective(self.collective, group.members)
        self._whole = under_way[key]
        self.arrival_s = self.context.now()
        self._whole.join(self)
        if self._whole.is_complete:
            del under_way[key]

    def __str__(self) -> str:
        return f"{self.collective.goal} for rank {', '.join(map(str, self._whole.missing()[:10]))}"


class WholeCollective:
    """All ranks' parts in one collective."""

    def __init__(self, collective: Collective, group: Sequence[int]) -> None:
        self.collective = collective
        self.group = group
        self._events: dict[int, PartEvent] = {}

    @property
    def is_complete(self) -> bool:
        return len(self._events) == len(self.group)

    def missing(self) -> list[int]:
        return [rank for rank in self.group if rank not in self._events]

    def join(self, event: PartEvent) -> None:
        network = event.context.network
        if network.under_way:
            raise Disturbed
        if not self._events:
            network.reserve()
        self._events[event.context.rank] = event
        if self.is_complete:
            self._hold([self._events[rank] for rank in self.group])

    def _hold(self, events: list[PartEvent]) -> None:
        first = events[0]
        _check_alike(events)
        finish_s = self._time(events)
        if not first.data.is_meta:
            perform(self.collective, [event.data for event in events], first.combine)
        traffic = _traffic(self.collective, first.data.numel(), first.data.itemsize)
        last = max(events, key=lambda event: event.arrival_s)
        for position, event in enumerate(events):
            outcome = event.context.outcome
            outcome.bytes_sent += traffic.bytes_sent[position]
            outcome.messages_sent += traffic.messages_sent[position]
            self._note(event, last, float(finish_s[position]), traffic.bytes_received[position])

    def _time(self, events: list[PartEvent]) -> np.ndarray:
        network = events[0].context.network
        arrivals_s = np.array([event.arrival_s for event in events])
        in_free_s = np.array([network.ports[rank].in_free_s for rank in self.group])
        group = np.array(self.group)
        # Only its left neighbour sends to a rank. Earlier messages must have come before that neighbour begins.
        latency_s = [network.cost(left, rank)[0] for left, rank in zip(np.roll(group, 1), group, strict=True)]
        if np.any(np.roll(arrivals_s, 1) + latency_s < in_free_s - _ROUNDING * (1 + in_free_s)):
            raise Disturbed
        timing = time_schedule(
            self.collective.plan(),
            length=events[0].data.numel(),
            itemsize=events[0].data.itemsize,
            arrivals_s=arrivals_s,
            latency_s=network.latencies(group),
            seconds_per_byte=network.seconds_per_byte(group),
            out_free_s=[network.ports[rank].out_free_s for rank in self.group],
            in_free_s=in_free_s,
            bounds=self.collective.bounds,
        )
        for position, rank in enumerate(self.group):
            network.ports[rank].out_free_s = float(timing.out_free_s[position])
            network.ports[rank].in_free_s = float(timing.in_free_s[position])
        network.release(float(timing.finish_s.max()))
        return timing.finish_s

    def _note(self, event: PartEvent, last: PartEvent, finish_s: float, nbytes: int) -> None:
        context = event.context
        if event.arrival_s < last.arrival_s:
            context.span(Kind.WAIT, event.arrival_s, last.arrival_s, last.context.rank)
        context.span(Kind.RECEIVE, last.arrival_s, finish_s, nbytes=nbytes)
        context.kernel.at(finish_s, context.kernel.finish, event)


def _check_alike(events: list[PartEvent]) -> None:
    first = events[0].data
    for event in events:
        if event.data.numel() != first.numel() or event.data.dtype != first.dtype:
            sent, expected = (f"{str(t.dtype)[6:]}[{t.numel()}]" for t in (first, event.data))
            raise MismatchError(events[0].context.rank, sent, event.context.rank, expected)


@lru_cache(maxsize=64)
def _traffic(collective: Collective, length: int, itemsize: int) -> Traffic:
    return count(collective.plan(), length, itemsize, collective.bounds)


def perform(collective: Collective, tensors: list[Tensor], combine: Combine) -> None:
    """Do a whole group's arithmetic around the ring, in the order of its schedule, without any clock."""
    bounds = collective.bounds_of(tensors[0].numel(), len(tensors))
    if collective.goal == "all-gather":
        whole = torch.cat([tensor[bounds[rank] : bounds[rank + 1]] for rank, tensor in enumerate(tensors)])
    else:
        whole = _reduce_around(tensors, bounds, combine)
    for rank, tensor in enumerate(tensors):
        part = slice(bounds[rank], bounds[rank + 1]) if collective.goal == "reduce-scatter" else slice(None)
        tensor[part] = whole[part]


def _reduce_around(tensors: list[Tensor], bounds: Sequence[int], combine: Combine) -> Tensor:
    """Chunk c is combined in the order c + 1, c + 2, …, c: one rank further for all chunks at a time."""
    size, length = len(tensors), tensors[0].numel()
    rows = torch.stack(tensors)
    chunk = torch.repeat_interleave(torch.arange(size), torch.tensor(bounds).diff())
    columns = torch.arange(length)
    whole = rows[(chunk + 1) % size, columns]
    for k in range(2, size + 1):
        combine_into(whole, rows[(chunk + k) % size, columns], combine)
    return whole
