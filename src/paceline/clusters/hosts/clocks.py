"""The clocks of several hosts, made one: how far each is ahead of the hub's, found by asking for the time.

A host reads its clock at some moment between the hub's request and the arrival of the answer. The hub takes it for the
middle, and is wrong by at most half of the exchange. So the quickest of several exchanges tells the most. Asked
again at the end, the clocks also tell how much faster one went than the other. Source: Cristian, "Probabilistic clock
synchronization", 1989.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paceline.trace import Spans

__all__ = ["EXCHANGES", "Clock", "Reading", "one_clock"]

EXCHANGES = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """One request for the time: when it went and came back by the hub's clock, and what the other clock said."""

    asked_s: float
    answer_s: float
    answered_s: float

    @property
    def offset_s(self) -> float:
        """How far the other clock is ahead."""
        return self.answer_s - (self.asked_s + self.answered_s) / 2

    @property
    def residual_s(self) -> float:
        """By how much the offset may be wrong at most."""
        return (self.answered_s - self.asked_s) / 2


@dataclass(slots=True)
class Clock:
    """A host's clock as the hub sees it: its best readings at the run's start and at its end."""

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
        """Seconds of the hub's clock for each second of this one."""
        if self.start is None or self.end is None:
            return 1.0
        theirs_s = self.end.answer_s - self.start.answer_s
        gained_s = self.end.offset_s - self.start.offset_s
        # A correction smaller than the readings' own error is no gain.
        if theirs_s <= 0 or abs(gained_s) <= self.start.residual_s + self.end.residual_s:
            return 1.0
        return 1.0 - gained_s / theirs_s


def one_clock(spans: Spans, clock: Clock) -> Spans:
    """A rank's spans by the hub's clock. They count from the run's start, which both clocks agree on."""
    if clock.rate == 1.0:
        return spans
    array = np.array(spans.array)
    for edge in ("start_s", "end_s"):
        array[edge] *= clock.rate
    return replace(spans, array=array)
