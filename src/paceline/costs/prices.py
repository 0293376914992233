"""Prices of computations in virtual time: `seconds(kind, segment, samples)`.

Given times (`compute=pl.times.…`) are one draw per gradient, for any number of samples. The closed forms of the
parameter servers assume that. Real processes that emulate such machines draw the same times. Measured times (see
`measured`) are a + b x samples, so that the price of a slice, a micro-batch or a federated client depends on its
samples. Counted times (`device=pl.devices.…`, see `counted`) are the number of operations divided by the device's
speed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Phases, Times

_DRAWS = 32
# Share of a gradient's time; the backward pass has twice the products of the forward pass.
_FORWARD_SHARE = 1 / 3


class Work(Enum):
    """Kind of computation."""

    GRADIENT = "gradient"
    """Forward and backward pass."""
    UPDATE = "update"
    FORWARD = "forward"
    BACKWARD = "backward"
    """Backward pass for inputs and weights. The next two are its parts."""
    INPUTS = "inputs"
    WEIGHTS = "weights"


_GRADIENT = Work.GRADIENT  # faster to read here than in its class

_SHARES = {
    Work.FORWARD: _FORWARD_SHARE,
    Work.BACKWARD: 1 - _FORWARD_SHARE,
    Work.INPUTS: (1 - _FORWARD_SHARE) / 2,
    Work.WEIGHTS: (1 - _FORWARD_SHARE) / 2,
}
"""Fraction of a gradient's time."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a micro-batch through a segment of the model."""

    work: Work
    share: float
    """Fraction of the model's operations in this segment."""
    samples: int
    slice_samples: float
    """Samples in a worker's slice of the batch. A given gradient time covers the slice and the whole model."""
    recomputes: bool = False
    """Whether the forward pass is recomputed first."""

    flops: float = 0.0
    """Operations of matrix products, in a forward pass of one sample through the segment."""
    moved_bytes: float = 0.0
    """Bytes read and written by all other operations of that pass."""
    launches: int = 0
    """Number of operations of that pass, for any number of samples."""
    weight_bytes: float = 0.0
    """Bytes of weights that its matrix products read, for any number of samples."""
    gradient_bytes: float = 0.0
    """Bytes of the gradients of these weights."""
    stage_share: float = 1.0
    """Fraction of the stage's operations in this segment. A given pass time covers the whole stage."""
    measured_s: float | None = None
    """Measured time on this machine; None if not measured."""

    @property
    def gradient_share(self) -> float:
        """Fraction of a gradient's time."""
        return _SHARES[self.work] + (_FORWARD_SHARE if self.recomputes else 0.0)

    @property
    def delay_share(self) -> float:
        """Fraction of a straggler's delay. There is one delay per micro-batch and stage, in the forward pass."""
        return self.stage_share if self.work is Work.FORWARD else 0.0


class Price(Protocol):
    """Price of the computations of one rank."""

    @property
    def fixed(self) -> float | None:
        """Slowness factor if no times are drawn; None if they are drawn.

        Ranks of one run with the same factor then have the same price for a pass.
        """
        ...

    @property
    def charges_updates(self) -> bool:
        """Whether updates take time. If not, `seconds` is 0 for all of them."""
        ...

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        """Return the seconds of a computation on a segment of the model. The whole model is segment 0.

        `size` is the number of samples of a gradient, or the bytes of the parameters changed by an update.
        """
        ...

    def pass_seconds(self, one: Pass) -> float:
        """Return the seconds of a pass through a segment."""
        ...

    def unused(self) -> list[float]:
        """Return the times that were drawn in advance and not used yet, for a checkpoint."""
        ...

    def put_back(self, draws: Sequence[float]) -> None:
        """Use these times first. Call it before anything is drawn."""
        ...


class Pricing(Protocol):
    """Prices of computations, before the slowness of a rank."""

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price: ...


@dataclass(frozen=True, slots=True)
class Given:
    """Given times: each gradient is one draw; an update takes no time."""

    times: Times

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        if isinstance(self.times, Phases):
            return _InPhases(self.times, stragglers.factor(rank), delays_of(rank, stragglers, rng))
        return _Drawn(self.times, rank, stragglers, rng)


class _Drawn:
    __slots__ = ("_block", "_delay", "_factor", "_rng", "_times")

    fixed = None
    charges_updates = False

    def __init__(self, times: Times, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> None:
        self._times = times
        self._factor = stragglers.factor(rank)
        self._delay = stragglers.delay_of(rank)
        self._rng = rng
        self._block: Iterator[float] = iter(())
        """Times drawn in advance."""

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        if kind is not _GRADIENT:
            return 0.0
        for drawn_s in self._block:
            return drawn_s
        return self._draw()

    def _draw(self) -> float:
        """Draw the next block, and return its first time."""
        times, rng, factor, delay = self._times, self._rng, self._factor, self._delay
        if delay is not None:
            return times.draw(rng) * factor + delay.draw(rng)
        # Drawing many at once gives the same numbers, and is faster.
        self._block = iter((times.sample(rng, _DRAWS) * factor).tolist())
        return next(self._block)

    def unused(self) -> list[float]:
        return list(copy.copy(self._block))

    def put_back(self, draws: Sequence[float]) -> None:
        self._block = iter(list(draws))

    def pass_seconds(self, one: Pass) -> float:
        drawn_s = self.seconds(_GRADIENT, 0, one.samples)
        return drawn_s * one.gradient_share * one.share * one.samples / one.slice_samples


class DrawsNothing:
    """A price that draws no times in advance. Delays are drawn when needed."""

    __slots__ = ("_extra", "_factor", "fixed")

    charges_updates = True

    def __init__(self, factor: float, extra: Callable[[], float] | None) -> None:
        """`extra` draws a delay; None if there are no delays."""
        self._factor = factor
        self._extra = extra or _nothing
        self.fixed = factor if extra is None else None

    def _delay_s(self, one: Pass) -> float:
        share = one.delay_share
        return share * self._extra() if share else 0.0

    def unused(self) -> list[float]:
        return []

    def put_back(self, draws: Sequence[float]) -> None:
        pass


class _InPhases(DrawsNothing):
    """Each pass through a stage takes its given time, for any stage and number of samples."""

    __slots__ = ("_times",)

    charges_updates = False

    def __init__(self, times: Phases, factor: float, extra: Callable[[], float] | None) -> None:
        super().__init__(factor, extra)
        self._times = times

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        return self._times.mean_s * self._factor + self._extra() if kind is Work.GRADIENT else 0.0

    def pass_seconds(self, one: Pass) -> float:
        times = self._times
        seconds = {
            Work.FORWARD: times.forward_s,
            Work.INPUTS: times.backward_s,
            Work.WEIGHTS: times.weights_s,
            Work.BACKWARD: times.backward_s + times.weights_s,
        }[one.work]
        seconds += times.forward_s if one.recomputes else 0.0
        return seconds * one.stage_share * self._factor + self._delay_s(one)


def delays_of(rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Callable[[], float] | None:
    """Return a function that draws the extra seconds of each gradient of a rank; None if there are none."""
    delay = stragglers.delay_of(rank)
    return None if delay is None else (lambda: delay.draw(rng))


def _nothing() -> float:
    return 0.0


def ready_shares(bucket_shares: Sequence[float]) -> list[float]:
    """Return the fraction of a gradient's time after which each bucket is ready, given their parameter shares."""
    ready, moments = _FORWARD_SHARE, []
    for share in bucket_shares:
        ready += share * (1 - _FORWARD_SHARE)
        moments.append(ready)
    return moments
