"""Prices by measurement: a + b x samples, and passes of segments that were measured separately."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.costs.prices import DrawsNothing, Pass, Price, Work, delays_of
from paceline.costs.stragglers import Stragglers

_TRIES = 7


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured prices: a gradient takes `fixed_s`, and `per_sample_s` for each of its samples."""

    fixed_s: float
    per_sample_s: float
    update_s: float = 0.0
    update_bytes: int = 0
    """Bytes of parameters updated in `update_s`. The time is proportional to the bytes; 0 if it is constant."""

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        return Reckoned(self, stragglers.factor(rank), delays_of(rank, stragglers, rng))


class _Costs(Protocol):
    """The fields of `Measured`. An implementation may measure them on first access."""

    @property
    def fixed_s(self) -> float: ...
    @property
    def per_sample_s(self) -> float: ...
    @property
    def update_s(self) -> float: ...
    @property
    def update_bytes(self) -> int: ...


class Reckoned(DrawsNothing):
    """Price of a gradient, its samples and an update, on a rank that may be slow."""

    __slots__ = ("_measured",)

    def __init__(self, measured: _Costs, factor: float, extra: Callable[[], float] | None) -> None:
        super().__init__(factor, extra)
        self._measured = measured

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        measured = self._measured
        if kind is Work.UPDATE:
            return measured.update_s * (size / measured.update_bytes if measured.update_bytes else 1.0)
        return (measured.fixed_s + measured.per_sample_s * size) * self._factor + self._extra()

    def pass_seconds(self, one: Pass) -> float:
        extra_s = self._delay_s(one)
        if one.measured_s is not None:
            return one.measured_s * self._factor + extra_s
        gradient_s = self._measured.fixed_s + self._measured.per_sample_s * one.samples
        return gradient_s * one.share * one.gradient_share * self._factor + extra_s


def fit(samples: tuple[int, int], seconds: tuple[float, float]) -> tuple[float, float]:
    """Return fixed seconds and seconds per sample from two measurements. The first fits exactly; none is negative."""
    one, other = samples
    per_sample_s = max(0.0, (seconds[1] - seconds[0]) / (other - one)) if other != one else 0.0
    if one:
        per_sample_s = min(per_sample_s, seconds[0] / one)
    return seconds[0] - per_sample_s * one, per_sample_s


def median_s(work: Callable[[], object]) -> float:
    """Return the median time of a few calls of `work`, in seconds."""
    taken_s = []
    for _ in range(_TRIES):
        start_s = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - start_s)
    return sorted(taken_s)[_TRIES // 2]
