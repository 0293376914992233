"""What a tensor group does in a stage for one micro-batch: passes, and the rings that its ranks meet in between.

It is the same for every micro-batch of a size and every group that holds these segments, so it is found once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from paceline.context.segment import Together
from paceline.costs.prices import Pass, Price
from paceline.replica.pieces.arranged import length_after
from paceline.schedules.collective import Collective, actions
from paceline.schedules.steps import Send
from paceline.trace import Kind
from paceline.trace.spans import SPAN

__all__ = ["Ring", "RunPlan", "ring_of", "rings_of"]

_RECEIVE = int(Kind.RECEIVE)


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring collective: what each rank sends to its right neighbour, round by round."""

    sent_bytes: tuple[tuple[int, ...], ...]
    """Of each round, by position."""
    even_bytes: int | None
    """What every rank sends in every round. None: chunks differ."""
    received_bytes: tuple[int, ...]
    """By position, of all rounds."""

    @property
    def rounds(self) -> int:
        return len(self.sent_bytes)


@lru_cache(maxsize=256)
def ring_of(goal: str, size: int, nbytes: int) -> Ring:
    """Of a tensor of so many bytes, which is cut into chunks byte by byte: so tensors without data are."""
    ranks = [actions(Collective(goal, "ring", size), rank, nbytes) for rank in range(size)]
    sent = tuple(
        tuple(step.where.stop - step.where.start for steps in parts for step in steps if step.kind is Send)
        for parts in zip(*ranks, strict=True)
    )
    lengths = {length for lengths in sent for length in lengths}
    received = tuple(sum(lengths[rank - 1] for lengths in sent) for rank in range(size))
    return Ring(sent, lengths.pop() if len(lengths) == 1 else None, received)


_GOALS = {"sum": "all-reduce", "max": "all-reduce", "scatter": "reduce-scatter", "gather": "all-gather"}
"""Who takes its part of what all have sends nothing."""


def rings_of(
    values: Sequence[int], together: Sequence[Together], size: int, samples: int = 1
) -> tuple[list[Ring], list[int]]:
    """What a tensor group does with values of so many bytes a sample, and how long each is then."""
    rings, lengths = [], [nbytes * samples for nbytes in values]
    for place, how, *_ in together:
        before, after = lengths[place], length_after(lengths[place], how, size)
        if how in _GOALS:
            rings.append(ring_of(_GOALS[how], size, max(before, after)))
        lengths[place] = after
    return rings, lengths


@dataclass(slots=True)
class RunPlan:
    """Passes in their order, each with the rings that follow it."""

    kind: int
    """Of the passes' spans."""
    passes: Sequence[Pass]
    rings: Sequence[Sequence[Ring]]
    size: int
    _seconds: dict[Hashable, list[float]] = field(default_factory=dict)
    steps: list[Ring | None] = field(init=False)
    """In order: a ring, or None for the next pass."""
    sent_bytes: list[int] = field(init=False)
    """By position."""
    messages: int = field(init=False)
    """That each rank sends."""
    template: np.ndarray = field(init=False)
    """The spans of its steps, without times. Those of a ring have the bytes of an even one."""

    def __post_init__(self) -> None:
        self.steps = [step for rings in self.rings for step in (None, *rings)]
        rings = [ring for rings in self.rings for ring in rings]
        self.messages = sum(ring.rounds for ring in rings)
        self.sent_bytes = [
            sum(lengths[position] for ring in rings for lengths in ring.sent_bytes)
            for position in range(self.size)
        ]
        self.template = np.zeros(len(self.steps), SPAN)
        for span, ring in zip(self.template, self.steps, strict=True):
            received = 0 if ring is None else ring.received_bytes[0]
            span["kind"], span["nbytes"], span["peer"] = (_RECEIVE if ring else self.kind), received, -1

    @property
    def meets(self) -> bool:
        """Whether there is any ring: without one each rank goes by itself."""
        return self.messages > 0

    def seconds(self, price: Price) -> list[float]:
        """Of each pass, on a rank that pays this price."""
        key = price.fixed
        if key is None:
            return [price.pass_seconds(one) for one in self.passes]
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = [price.pass_seconds(one) for one in self.passes]
        return found

    def packed(self, times_s: Sequence[float], micro: int, step: int) -> bytes:
        """The spans of a rank whose steps end one after the other, and that waits for nobody."""
        spans = self.template.copy()
        spans["start_s"], spans["end_s"], spans["step"] = times_s[:-1], times_s[1:], step
        spans["peer"][spans["kind"] == self.kind] = micro
        return spans.tobytes()
