"""What computations cost in virtual time: one question, `seconds(kind, segment, samples)`.

What a user gives (`compute=pl.times.…`) is a draw for each gradient, however many samples it is of: the closed forms of
the parameter servers rest on that. Real processes that emulate such machines draw the same. What is measured is
a + b x samples: so slices of any size, micro-batches and federated clients each cost what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times

__all__ = ["Given", "Measured", "Price", "Pricing", "Work", "fit", "ready_shares"]

_DRAWS = 32
_FORWARD_SHARE = 1 / 3  # of a gradient's time: backward multiplies twice where forward does once


class Work(Enum):
    """What is computed."""

    GRADIENT = "gradient"
    """Forward and backward."""
    UPDATE = "update"


class Price(Protocol):
    """What one rank's computations cost."""

    def seconds(self, kind: Work, segment: int, samples: int) -> float:
        """Of a piece of work on a segment of the model. The whole model is segment 0."""
        ...


class Pricing(Protocol):
    """What computations cost, before a rank's own slowness."""

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price: ...


@dataclass(frozen=True, slots=True)
class Given:
    """Each gradient is a draw; an update takes no time."""

    times: Times

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        return _Drawn(_draws(self.times, rank, stragglers, rng).__next__)


@dataclass(frozen=True, slots=True)
class Measured:
    """A gradient takes `fixed_s` and `per_sample_s` for each of its samples."""

    fixed_s: float
    per_sample_s: float
    update_s: float = 0.0

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        delay, factor = stragglers.delay_of(rank), stragglers.factor(rank)
        extra: Callable[[], float] = (lambda: 0.0) if delay is None else (lambda: delay.draw(rng))
        return _Reckoned(self, factor, extra)


class _Drawn:
    __slots__ = ("_draw",)

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw

    def seconds(self, kind: Work, segment: int, samples: int) -> float:
        return self._draw() if kind is Work.GRADIENT else 0.0


class _Reckoned:
    __slots__ = ("_extra", "_factor", "_measured")

    def __init__(self, measured: Measured, factor: float, extra: Callable[[], float]) -> None:
        self._measured = measured
        self._factor = factor
        self._extra = extra

    def seconds(self, kind: Work, segment: int, samples: int) -> float:
        measured = self._measured
        if kind is Work.UPDATE:
            return measured.update_s
        return (measured.fixed_s + measured.per_sample_s * samples) * self._factor + self._extra()


def ready_shares(bucket_shares: Sequence[float]) -> list[float]:
    """After which share of a gradient's time each bucket is ready, given their shares of the parameters."""
    ready, moments = _FORWARD_SHARE, []
    for share in bucket_shares:
        ready += share * (1 - _FORWARD_SHARE)
        moments.append(ready)
    return moments


def fit(samples: tuple[int, int], seconds: tuple[float, float]) -> tuple[float, float]:
    """Fixed seconds and seconds a sample from two measurements. The first is met exactly; neither is below zero."""
    one, other = samples
    per_sample_s = max(0.0, (seconds[1] - seconds[0]) / (other - one)) if other != one else 0.0
    if one:
        per_sample_s = min(per_sample_s, seconds[0] / one)
    return seconds[0] - per_sample_s * one, per_sample_s


def _draws(times: Times, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Iterator[float]:
    factor, delay = stragglers.factor(rank), stragglers.delay_of(rank)
    if delay is not None:
        while True:
            yield times.draw(rng) * factor + delay.draw(rng)
    while True:  # drawing many at once gives the same numbers, for the price of a few single draws
        yield from (times.sample(rng, _DRAWS) * factor).tolist()
