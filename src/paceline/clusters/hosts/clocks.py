"""Synchronization of the clocks of several hosts: the offset of each clock from the hub's, found by exchanges.

A host reads its clock at some time between the hub's request and the arrival of the answer. The hub assumes the middle.
The error is at most half of the round-trip time, so the fastest of several exchanges is the most accurate. A second
measurement at the end of the run shows how much faster one clock ran than the other. Source: Cristian, "Probabilistic
clock synchronization", 1989.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.clusters.base.outcome import Outcome
from paceline.trace import Spans

EXCHANGES = 16
_LIMIT_S = 2.0  # for all exchanges together


@dataclass(frozen=True, slots=True)
class Reading:
    """One exchange: when the hub sent the request and received the answer, and the time in the answer."""

    asked_s: float
    answer_s: float
    answered_s: float

    @property
    def offset_s(self) -> float:
        """Offset of the other clock. Positive if it is ahead."""
        return self.answer_s - (self.asked_s + self.answered_s) / 2

    @property
    def residual_s(self) -> float:
        """Upper bound of the error of the offset."""
        return (self.answered_s - self.asked_s) / 2


@dataclass(slots=True)
class Clock:
    """Clock of a host: its best readings at the start and at the end of the run."""

    start: Reading | None = None
    end: Reading | None = None

    def note(self, reading: Reading, *, at_end: bool) -> None:
        best = self.end if at_end else self.start
        if best is None or reading.residual_s < best.residual_s:
            if at_end:
                self.end = reading
            else:
                self.start = reading

    @property
    def offset_s(self) -> float:
        return self.start.offset_s if self.start is not None else 0.0

    @property
    def residual_s(self) -> float:
        return max((reading.residual_s for reading in (self.start, self.end) if reading), default=0.0)

    @property
    def rate(self) -> float:
        """Seconds of the hub's clock for each second of this clock."""
        if self.start is None or self.end is None:
            return 1.0
        theirs_s = self.end.answer_s - self.start.answer_s
        gained_s = self.end.offset_s - self.start.offset_s
        # A correction that is smaller than the error of the readings is useless.
        if theirs_s <= 0 or abs(gained_s) <= self.start.residual_s + self.end.residual_s:
            return 1.0
        return 1.0 - gained_s / theirs_s


def one_clock(spans: Spans, clock: Clock) -> Spans:
    """Convert a rank's spans to the hub's clock.

    Times count from the run's start, which is the same moment on both clocks.
    """
    if clock.rate == 1.0:
        return spans
    array = np.array(spans.array)
    for edge in ("start_s", "end_s"):
        array[edge] *= clock.rate
    return replace(spans, array=array)


def on_one_clock(outcome: Outcome, clock: Clock) -> Outcome:
    """Convert the times in a rank's outcome to the hub's clock."""
    outcome.clock_residual_s = clock.residual_s
    if outcome.spans is not None:
        outcome.spans = one_clock(outcome.spans, clock)
    return outcome


class ClockExchange:
    """The clocks of all ranks, and the exchanges with them."""

    def __init__(self, ranks: int) -> None:
        self.clocks = [Clock() for _ in range(ranks)]
        self._at_end = False
        self._open = [0] * ranks  # requests without an answer
        self._until_s = 0.0

    def asked(self, ranks: Sequence[int], *, at_end: bool) -> Iterator[int]:
        """Yield the next rank to query, several times for each rank, until the time limit."""
        self._at_end = at_end
        self._open = [0] * len(self._open)
        self._until_s = time.monotonic() + _LIMIT_S
        for rank in ranks:
            for _ in range(EXCHANGES):
                if time.monotonic() > self._until_s:
                    return
                self._open[rank] += 1
                yield rank

    def note(self, rank: int, asked_s: float, answer_s: float) -> None:
        """Record the answer of a rank, which has just arrived."""
        self.clocks[rank].note(Reading(asked_s, answer_s, time.monotonic()), at_end=self._at_end)
        self._open[rank] -= 1

    def awaits(self, rank: int) -> bool:
        """Return whether an answer of a rank is missing and may still arrive in time."""
        return self._open[rank] > 0 and time.monotonic() < self._until_s
