"""How long gradients take on a rank in a real process: as long as they take, longer, or as long as is drawn."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from paceline.clusters.outcome import Outcome
from paceline.costs.prices import Given, Pass, Price, Work
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.links import clock

__all__ = ["DrawnPace", "OwnPace", "Pace", "dawdle", "pace_of"]


class Pace(Protocol):
    """What one rank's gradients take, twins included."""

    @property
    def shows_buckets(self) -> bool:
        """Whether buckets can be ready before the whole gradient is."""
        ...

    def begin(self, samples: int) -> float:
        """A gradient begins: how many seconds it is to take at least, or to take longer than it does."""
        ...

    def begin_pass(self, one: Pass) -> float:
        """The same of a pass through a segment."""
        ...

    def left_s(self, least_s: float, took_s: float, worked_s: float) -> float:
        """How long its rank has to wait when it has computed it; at most 0 if not at all.

        It took so long, of which the processor, or the rank's device, worked so long.
        """
        ...

    @property
    def price(self) -> Price | None:
        """Where seconds are drawn."""
        ...


class OwnPace:
    """A gradient takes what it takes. A straggler's takes longer by a factor of it, or by a delay."""

    __slots__ = ("_delay", "_factor", "_rng", "shows_buckets")

    price = None

    def __init__(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> None:
        self._factor = stragglers.factor(rank)
        self._delay = stragglers.delay_of(rank)
        self._rng = rng
        self.shows_buckets = self._factor == 1.0 and self._delay is None

    def begin(self, samples: int) -> float:
        return 0.0 if self._delay is None else self._delay.draw(self._rng)

    def begin_pass(self, one: Pass) -> float:
        share = one.delay_share
        return share * self.begin(one.samples) if share else 0.0

    def left_s(self, least_s: float, took_s: float, worked_s: float) -> float:
        # A rank that waits for a core is not slow by itself. Its delay comes on top of what it computes.
        return worked_s * (self._factor - 1.0) + least_s


class DrawnPace:
    """A gradient takes the seconds that a simulated rank of the same number and seed draws.

    One whose computing takes longer is noted: it is slower than the machine that it stands for.
    """

    __slots__ = ("_outcome", "price")

    shows_buckets = True

    def __init__(
        self, rank: int, times: Times, stragglers: Stragglers, rng: np.random.Generator, outcome: Outcome
    ) -> None:
        self.price: Price = Given(times).of_rank(rank, stragglers, rng)
        self._outcome = outcome

    def begin(self, samples: int) -> float:
        return self.price.seconds(Work.GRADIENT, 0, samples)

    def begin_pass(self, one: Pass) -> float:
        return self.price.pass_seconds(one)

    def left_s(self, least_s: float, took_s: float, worked_s: float) -> float:
        left_s = least_s - took_s
        if left_s < 0:
            self._outcome.overruns += 1
            self._outcome.overrun_s -= left_s
        return left_s


def dawdle(left_s: float, deadline_s: float) -> None:
    """Let so many seconds pass on the run's clock, which may stand for a while."""
    until_s, patient_until_s = clock.now() + left_s, time.monotonic() + left_s + deadline_s
    while left_s > 0 and time.monotonic() < patient_until_s:
        time.sleep(left_s)
        left_s = until_s - clock.now()


def pace_of(
    rank: int, stragglers: Stragglers, compute: Times | None, rng: np.random.Generator, outcome: Outcome
) -> Pace:
    """The pace of a rank. `compute`: what a gradient takes before the rank's own slowness; None: what it takes."""
    if compute is None:
        return OwnPace(rank, stragglers, rng)
    return DrawnPace(rank, compute, stragglers, rng, outcome)
