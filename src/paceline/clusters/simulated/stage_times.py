"""Times at which the ranks of a tensor group reach each step of a stage: passes, and rings between them.

The link model is in `costs.transfers`. Messages of a ring come only from the left neighbour, in order. Other messages
that arrive at the same time (such as from a pipeline) take their turn at the input port. They are passed as
`OutsideMessage`s, and their delivery times are computed here.

Ranks that begin together, with equal work and equal outside messages, stay together. Then one lane is computed for all
of them. Otherwise each rank has its own lane. Both give exactly the times of a simulation message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from paceline.clusters.simulated.stage_plan import Ring
from paceline.costs.transfers import Resource, arrival_order, idle_rounds_end_s


class Diverged(Exception):  # noqa: N818 (the caller continues with a lane for each rank)
    """Ranks that had equal times so far will have different times in the next step."""


@dataclass(slots=True)
class OutsideMessage:
    """A message from outside the group that takes its turn at an input port."""

    arrives_s: float
    start_s: float
    """When it entered its sender's port."""
    source: int
    carry_s: float
    card_s: float = 0.0
    """When the card of the receiver's host has carried it."""
    begins_s: float = 0.0
    delivered_s: float = 0.0

    @property
    def alike(self) -> tuple[float, float, float, float]:
        """Equal for messages that arrive at different ranks of a group at the same time."""
        return self.arrives_s, self.start_s, self.carry_s, self.card_s

    @property
    def order(self) -> tuple[float, float, int]:
        return arrival_order(self.arrives_s, self.start_s, self.source)

    def enter(self, receiver: Resource) -> None:
        self.begins_s = receiver.occupy(self.arrives_s, self.carry_s)
        self.delivered_s = receiver.free_s = max(receiver.free_s, self.card_s)


class Lanes(NamedTuple):
    """Links from each lane to the next one. With one lane for all ranks, from the lane to itself."""

    latency_s: Sequence[float]
    per_byte_s: Sequence[float]
    sources: Sequence[int | None]
    """Rank of each lane. None if one lane stands for all ranks."""

    @property
    def are_equal(self) -> bool:
        return len(set(self.latency_s)) == 1 and len(set(self.per_byte_s)) == 1

    @property
    def together(self) -> Lanes:
        """One lane for all ranks. The links must be equal."""
        return Lanes(self.latency_s[:1], self.per_byte_s[:1], (None,))


class Mark(NamedTuple):
    """State of each lane at the end of a step."""

    now_s: list[float]
    out_free_s: list[float]
    in_free_s: list[float]
    served: list[int]
    """Number of outside messages that have been served."""

    @property
    def together(self) -> Mark:
        """The same state of one lane for all ranks."""
        return Mark(self.now_s[:1], self.out_free_s[:1], self.in_free_s[:1], self.served[:1])

    def apart(self, ranks: int) -> Mark:
        """Return the same state of a lane for each rank, from one lane for all."""
        return Mark(self.now_s * ranks, self.out_free_s * ranks, self.in_free_s * ranks, self.served * ranks)


Step: TypeAlias = tuple[Sequence[float], Ring | None]
"""The seconds of a pass in each lane, or a ring."""

Outside: TypeAlias = Sequence[Sequence[OutsideMessage]]


def follow(steps: Sequence[Step], marks: list[Mark], lanes: Lanes, outside: Outside) -> list[float]:
    """Continue from the last mark to the end of the stage, with a mark for each step. Return when the input ports are
    free.

    Raises Diverged if one lane stands for all ranks, and they diverge.
    """
    for pass_s, ring in steps[len(marks) - 1 :]:
        before = marks[-1]
        if ring is None:
            now_s = [now + seconds for now, seconds in zip(before.now_s, pass_s, strict=True)]
            marks.append(Mark(now_s, *before[1:]))
        elif _is_undisturbed(ring, before, lanes, outside):
            marks.append(_go_round_idle(ring, before, lanes))
        else:
            marks.append(_go_round(ring, before, lanes, outside))
    receivers = [Resource(free_s) for free_s in marks[-1].in_free_s]
    for lane, served in enumerate(marks[-1].served):
        for message in outside[lane][served:]:
            message.enter(receivers[lane])
    return [receiver.free_s for receiver in receivers]


def _is_undisturbed(ring: Ring, before: Mark, lanes: Lanes, outside: Outside) -> bool:
    """Return whether all ranks begin a ring together, with free ports and equal work.

    This is the usual state after a ring.
    """
    now_s = before.now_s[0]
    return (
        before.now_s.count(now_s) == len(before.now_s)
        and max(before.out_free_s) <= now_s
        and max(before.in_free_s) <= now_s + lanes.latency_s[0]
        and ring.even_bytes is not None
        and lanes.are_equal
        and all(served == len(line) for served, line in zip(before.served, outside, strict=True))
    )


def _go_round_idle(ring: Ring, before: Mark, lanes: Lanes) -> Mark:
    carry_s = ring.sent_bytes[0][0] * lanes.per_byte_s[0]
    end_s = idle_rounds_end_s(before.now_s[0], lanes.latency_s[0], carry_s, ring.rounds)
    ends_s = [end_s] * len(before.now_s)
    return Mark(ends_s, ends_s, ends_s, before.served)  # output ports are free a little earlier, but not used


def _go_round(ring: Ring, before: Mark, lanes: Lanes, outside: Outside) -> Mark:
    now, served = list(before.now_s), list(before.served)
    senders = [Resource(free_s) for free_s in before.out_free_s]
    receivers = [Resource(free_s) for free_s in before.in_free_s]
    for lengths in ring.sent_bytes:
        carries = [nbytes * per_byte_s for nbytes, per_byte_s in zip(lengths, lanes.per_byte_s, strict=False)]
        starts = [
            sender.occupy(now_s, carry_s)
            for sender, now_s, carry_s in zip(senders, now, carries, strict=True)
        ]
        for lane, receiver in enumerate(receivers):
            left = lane - 1  # for the first lane, the last one
            arrives_s = starts[left] + lanes.latency_s[left]
            waiting = outside[lane]
            while served[lane] < len(waiting) and _goes_first(
                waiting[served[lane]], arrives_s, starts[left], lanes.sources[left]
            ):
                waiting[served[lane]].enter(receiver)
                served[lane] += 1
            receiver.occupy(arrives_s, carries[left])
            now[lane] = max(senders[lane].free_s, receiver.free_s)
    out_free_s, in_free_s = ([each.free_s for each in resources] for resources in (senders, receivers))
    return Mark(now, out_free_s, in_free_s, served)


def _goes_first(message: OutsideMessage, arrives_s: float, start_s: float, source: int | None) -> bool:
    """Return whether an outside message is served before a message of the ring."""
    if source is not None:
        return message.order < arrival_order(arrives_s, start_s, source)
    if (message.arrives_s, message.start_s) == (arrives_s, start_s):
        raise Diverged  # the message of the lower rank is first, which may differ from rank to rank
    return (message.arrives_s, message.start_s) < (arrives_s, start_s)
