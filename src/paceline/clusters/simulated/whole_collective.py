"""Ring collectives of many simulated ranks, timed as a whole instead of message by message.

If another message uses the ports of the ranks at the same time, the collective falls back to single messages: see
`group_operation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from paceline.clusters.simulated.group_operation import GroupOperation
from paceline.clusters.simulated.group_part import GroupPart
from paceline.clusters.simulated.messages import SendEvent
from paceline.collectives.interpreter import interpret
from paceline.context import Combine
from paceline.errors import MismatchError
from paceline.model.sums import combine_into
from paceline.schedules.collectives.collective import Collective
from paceline.schedules.collectives.count import Traffic, count
from paceline.schedules.collectives.timing import Timing, time_schedule
from paceline.trace import Kind
from paceline.trace.spans import pack_span

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext
    from paceline.clusters.simulated.net import SimulatedNet

MANY = 32
"""Minimum number of ranks to time a collective as a whole."""


def suits(collective: Collective, length: int) -> bool:
    """Return whether to time a collective of `length` values as a whole.

    Rings only: they have many messages, and end after all ranks have begun. An empty chunk takes no time at a port, so
    a repetition after a fall-back might give messages that arrive at the same instant another order.
    """
    return (
        collective.size >= MANY and collective.algorithm == "ring" and _has_no_empty_chunk(collective, length)
    )


@lru_cache(maxsize=1024)
def _has_no_empty_chunk(collective: Collective, length: int) -> bool:
    if collective.bounds is None:
        return length >= collective.size
    return all(start < stop for start, stop in pairwise(collective.bounds))


class CollectivePart(GroupPart[None]):
    """One rank's part in a collective that is timed as a whole."""

    __slots__ = ("collective", "combine", "data", "step")

    step: int
    """Step of the rank when all ranks had joined."""

    def __init__(
        self,
        context: SimulatedContext,
        net: SimulatedNet,
        collective: Collective,
        data: Tensor,
        combine: Combine,
    ) -> None:
        super().__init__(context, net)
        self.collective = collective
        self.data = data
        self.combine = combine
        self.result = None

    def start(self) -> None:
        self.join()

    def new_operation(self) -> WholeCollective:
        return WholeCollective(self.context, self.collective, self.net.group.members)

    async def run_messages(self) -> None:
        await interpret(
            self.context,
            self.net,
            self.collective,
            self.data,
            combine=self.combine,
            next_tag=lambda: self.tag,
        )


class WholeCollective(GroupOperation):
    """The parts of all ranks in one collective."""

    gives_way: ClassVar[bool] = True

    parts: dict[int, CollectivePart]

    def __init__(self, context: SimulatedContext, collective: Collective, members: Sequence[int]) -> None:
        super().__init__(context, members)
        self.collective = collective
        self._meeting = context.world.next_meeting()
        self._inputs: Tensor | None = None
        """Inputs of all ranks, from the time when the first rank has ended."""

    def describe(self) -> str:
        missing = [str(rank) for position, rank in enumerate(self.members) if position not in self.parts]
        return f"{self.collective.goal} for rank {', '.join(missing[:10])}"

    def first_arrival_s(self, position: int) -> float:
        part, right = self.parts[position], self.members[(position + 1) % len(self.members)]
        latency_s, _ = self.network.cost(self.members[position], right)
        return max(part.joined_s, part.out_free_s) + latency_s

    def is_disturbed_by(self, packet: SendEvent) -> bool:
        return True

    def begin(self) -> None:
        parts = self._in_order()
        _check_alike(parts)
        self._timing = self._time(parts)
        self._traffic = _traffic(self.collective, parts[0].data.numel(), parts[0].data.itemsize)
        self._last = max(parts, key=lambda part: part.joined_s)
        for position, finish_s in enumerate(self._timing.finish_s.tolist()):
            parts[position].step = parts[position].context.step
            self.kernel.at(finish_s, self._end_one, position)

    def _in_order(self) -> list[CollectivePart]:
        return [self.parts[position] for position in range(len(self.members))]

    def _time(self, parts: Sequence[CollectivePart]) -> Timing:
        group = np.array(self.members)
        return time_schedule(
            self.collective.plan(),
            length=parts[0].data.numel(),
            itemsize=parts[0].data.itemsize,
            arrivals_s=[part.joined_s for part in parts],
            latency_s=self.network.latencies(group),
            seconds_per_byte=self.network.seconds_per_byte(group),
            out_free_s=[part.out_free_s for part in parts],
            in_free_s=[self.network.ports[rank].receiver.free_s for rank in self.members],
            bounds=self.collective.bounds,
        )

    def _end_one(self, position: int) -> None:
        part, timing, traffic = self.parts[position], self._timing, self._traffic
        if self._inputs is None and not part.data.is_meta:
            tensors = [each.data for each in self._in_order()]
            self._inputs = perform(self.collective, tensors, part.combine)
        spans = self._spans(part, self.kernel.now, traffic.bytes_received[position])
        part.record_end(spans, traffic.bytes_sent[position], traffic.messages_sent[position])
        self.end(position, float(timing.out_free_s[position]), float(timing.in_free_s[position]))

    def _spans(self, part: CollectivePart, finish_s: float, nbytes: int) -> bytes:
        last, step, meeting = self._last, part.step, self._meeting
        waits = b""
        if part.joined_s < last.joined_s:
            waits = pack_span(Kind.WAIT, part.joined_s, last.joined_s, last.context.rank, 0, step, meeting)
        return waits + pack_span(Kind.RECEIVE, last.joined_s, finish_s, -1, nbytes, step, meeting)

    def restore(self) -> None:
        if self._inputs is None:
            return
        for part, inputs in zip(self._in_order(), self._inputs, strict=True):
            if part.recorded is not None:
                part.data = inputs.clone()  # from now on the rank may use its tensor for other purposes
            elif self.collective.goal != "all-gather":
                part.data.copy_(inputs)

    def forget(self) -> None:
        self._inputs = None


def _check_alike(parts: Sequence[CollectivePart]) -> None:
    first = parts[0].data
    for part in parts:
        if part.data.numel() != first.numel() or part.data.dtype != first.dtype:
            sent, expected = (f"{str(t.dtype)[6:]}[{t.numel()}]" for t in (first, part.data))
            raise MismatchError(parts[0].context.rank, sent, part.context.rank, expected)


@lru_cache(maxsize=64)
def _traffic(collective: Collective, length: int, itemsize: int) -> Traffic:
    return count(collective.plan(), length, itemsize, collective.bounds)


def perform(collective: Collective, tensors: Sequence[Tensor], combine: Combine) -> Tensor:
    """Do the arithmetic of a whole group around the ring, in the order of its schedule, without a clock.

    Return the inputs, one row for each rank. Of an all-gather, only the rank's own part of a row is its input.
    """
    bounds = collective.bounds_of(tensors[0].numel(), len(tensors))
    if collective.goal == "all-gather":
        whole = torch.cat([tensor[bounds[rank] : bounds[rank + 1]] for rank, tensor in enumerate(tensors)])
        rows = whole.expand(len(tensors), -1)
    else:
        rows = torch.stack(list(tensors))
        whole = _reduce_around(rows, bounds, combine)
    for rank, tensor in enumerate(tensors):
        part = slice(bounds[rank], bounds[rank + 1]) if collective.goal == "reduce-scatter" else slice(None)
        tensor[part] = whole[part]
    return rows


def _reduce_around(rows: Tensor, bounds: Sequence[int], combine: Combine) -> Tensor:
    """Combine chunk c in the order c + 1, c + 2, …, c. All chunks advance by one rank at a time."""
    size, length = rows.shape
    chunk = torch.repeat_interleave(torch.arange(size), torch.tensor(bounds).diff())
    columns = torch.arange(length)
    whole = rows[(chunk + 1) % size, columns]
    for k in range(2, size + 1):
        combine_into(whole, rows[(chunk + k) % size, columns], combine)
    return whole
