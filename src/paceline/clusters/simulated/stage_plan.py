"""Work of a tensor group in a stage for one micro-batch: passes, and the ring collectives between them.

It is the same for every micro-batch of one size and every group with these segments, so it is computed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from paceline.context.segment import GroupReduction
from paceline.costs.prices import Pass, Price
from paceline.model.stages.arranged import length_after
from paceline.schedules.collectives.collective import Collective, actions
from paceline.schedules.collectives.steps import Send
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE, SPAN

_RECEIVE = int(Kind.RECEIVE)


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring collective: the bytes that each rank sends to its right neighbour, round by round."""

    sent_bytes: tuple[tuple[int, ...], ...]
    """For each round, bytes by position."""
    even_bytes: int | None
    """Bytes that every rank sends in every round. None if chunks differ."""
    received_bytes: tuple[int, ...]
    """Bytes received in all rounds, by position."""

    @property
    def rounds(self) -> int:
        return len(self.sent_bytes)


@lru_cache(maxsize=256)
def ring_of(goal: str, size: int, nbytes: int) -> Ring:
    """Return the ring of a tensor of `nbytes` bytes. It is split at bytes, as tensors without data are."""
    ranks = [actions(Collective(goal, "ring", size), rank, nbytes) for rank in range(size)]
    sent = tuple(
        tuple(step.where.stop - step.where.start for steps in parts for step in steps if step.kind is Send)
        for parts in zip(*ranks, strict=True)
    )
    lengths = {length for lengths in sent for length in lengths}
    received = tuple(sum(lengths[rank - 1] for lengths in sent) for rank in range(size))
    return Ring(sent, lengths.pop() if len(lengths) == 1 else None, received)


_GOALS = {"sum": "all-reduce", "max": "all-reduce", "scatter": "reduce-scatter", "gather": "all-gather"}
"""Collectives by kind of reduction. Taking a slice of a replicated value sends nothing."""


def rings_of(
    values: Sequence[int], together: Sequence[GroupReduction], size: int, samples: int = 1
) -> tuple[list[Ring], list[int]]:
    """Return the rings for values of these bytes per sample, and the bytes of each value afterwards."""
    rings, lengths = [], [nbytes * samples for nbytes in values]
    for place, how, *_ in together:
        before, after = lengths[place], length_after(lengths[place], how, size)
        if how in _GOALS:
            rings.append(ring_of(_GOALS[how], size, max(before, after)))
        lengths[place] = after
    return rings, lengths


@dataclass(slots=True)
class StagePlan:
    """Passes in order, each with the rings that follow it."""

    kind: int
    """Kind of the passes' spans."""
    passes: Sequence[Pass]
    rings: Sequence[Sequence[Ring]]
    size: int
    _seconds: dict[Hashable, list[float]] = field(default_factory=dict)
    steps: list[Ring | None] = field(init=False)
    """In order: a ring, or None for the next pass."""
    sent_bytes: list[int] = field(init=False)
    """Bytes sent, by position."""
    messages: int = field(init=False)
    """Number of messages that each rank sends."""
    template: np.ndarray = field(init=False)
    """Spans of the steps, without times. The spans of rings have the bytes of an even ring."""
    _ring_rows: np.ndarray = field(init=False)
    _pass_rows: np.ndarray = field(init=False)

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
            span["message"] = NO_MESSAGE
        is_ring = np.array([ring is not None for ring in self.steps], dtype=bool)
        self._ring_rows, self._pass_rows = np.flatnonzero(is_ring), np.flatnonzero(~is_ring)

    @property
    def meets(self) -> bool:
        """Whether there is any ring. Without a ring, ranks do not depend on each other."""
        return self.messages > 0

    def seconds(self, price: Price) -> list[float]:
        """Return the seconds of each pass on a rank with this price."""
        key = price.fixed
        if key is None:
            return [price.pass_seconds(one) for one in self.passes]
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = [price.pass_seconds(one) for one in self.passes]
        return found

    def packed(self, times_s: Sequence[float], micro: int, step: int, meeting: int = NO_MESSAGE) -> bytes:
        """Return the spans of a rank if its steps follow each other without waits.

        `meeting` is the id of the first ring.
        """
        spans = self.template.copy()
        spans["start_s"], spans["end_s"], spans["step"] = times_s[:-1], times_s[1:], step
        spans["peer"][self._pass_rows] = micro
        spans["message"][self._ring_rows] = meeting - np.arange(len(self._ring_rows))
        return spans.tobytes()
