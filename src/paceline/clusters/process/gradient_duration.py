"""Duration of gradients on a rank in a real process: the real time, a longer time, or a drawn time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from paceline.clusters.base.outcome import Outcome
from paceline.costs.prices import Given, Pass, Price, Work
from paceline.costs.slowdowns import Slowdowns
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.links import clock


class GradientDuration(Protocol):
    """Duration of one rank's gradients, including its twins."""

    @property
    def shows_buckets(self) -> bool:
        """Whether buckets may be ready before the whole gradient is."""
        ...

    def begin(self, samples: int) -> float:
        """Begin a gradient. Return its minimum seconds, or its extra seconds, depending on the class."""
        ...

    def begin_pass(self, one: Pass) -> float:
        """Begin a pass through a segment. Return seconds as `begin` does."""
        ...

    def left_s(self, least_s: float, took_s: float, worked_s: float) -> float:
        """Return how long the rank must wait after the computation. 0 or less for no wait.

        `least_s` is the result of `begin`, `took_s` the elapsed time, `worked_s` the busy time of the processor or
        device.
        """
        ...

    @property
    def price(self) -> Price | None:
        """Source of drawn seconds. None if they are not drawn."""
        ...


class OwnDuration:
    """Real duration. On a straggler it is longer, by a factor or by a delay."""

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
        # Waiting for a core does not make a rank slow, so only computing time is multiplied. The delay is added to
        # that time.
        return worked_s * (self._factor - 1.0) + least_s


class DrawnDuration:
    """Duration drawn as by a simulated rank of the same number and seed.

    A computation that takes longer than the drawn time counts as an overrun.
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


class SlowedDuration:
    """Duration on a rank that is slower at times."""

    __slots__ = ("_inner", "_now", "_slowdowns", "price")

    shows_buckets = False

    def __init__(self, inner: GradientDuration, slowdowns: Slowdowns, now: Callable[[], float]) -> None:
        self._inner = inner
        self._slowdowns = slowdowns
        self._now = now
        self.price = inner.price

    def begin(self, samples: int) -> float:
        return self._inner.begin(samples)

    def begin_pass(self, one: Pass) -> float:
        return self._inner.begin_pass(one)

    def left_s(self, least_s: float, took_s: float, worked_s: float) -> float:
        work_s = took_s + max(0.0, self._inner.left_s(least_s, took_s, worked_s))
        return self._slowdowns.elapsed_s(self._now() - took_s, work_s) - took_s


def pad_to_duration(left_s: float, deadline_s: float) -> None:
    """Wait for `left_s` seconds on the run's clock. The clock may be stopped for a while."""
    until_s, patient_until_s = clock.now() + left_s, time.monotonic() + left_s + deadline_s
    while left_s > 0 and time.monotonic() < patient_until_s:
        time.sleep(left_s)
        left_s = until_s - clock.now()


def duration_of(
    rank: int, stragglers: Stragglers, compute: Times | None, rng: np.random.Generator, outcome: Outcome
) -> GradientDuration:
    """Return the gradient duration of a rank. `compute` is its base time. None to use the real time."""
    if compute is None:
        return OwnDuration(rank, stragglers, rng)
    return DrawnDuration(rank, compute, stragglers, rng, outcome)
