"""What computations cost in virtual time: one question, `seconds(kind, segment, samples)`.

What a user gives (`compute=pl.times.…`) is a draw for each gradient, however many samples it is of: the closed forms of
the parameter servers rest on that. Real processes that emulate such machines draw the same. What is measured (see
`measured`) is a + b x samples: so slices of any size, micro-batches and federated clients each cost what they compute.
What is counted (`device=pl.devices.…`, see `counted`) costs its operations at the device's speed.
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

__all__ = [
    "DrawsNothing",
    "Given",
    "Pass",
    "Price",
    "Pricing",
    "Work",
    "delays_of",
    "ready_shares",
]

_DRAWS = 32
_FORWARD_SHARE = 1 / 3  # of a gradient's time: backward multiplies twice where forward does once


class Work(Enum):
    """What is computed."""

    GRADIENT = "gradient"
    """Forward and backward."""
    UPDATE = "update"
    FORWARD = "forward"
    BACKWARD = "backward"
    """Of inputs and weights; in two parts it is the next two."""
    INPUTS = "inputs"
    WEIGHTS = "weights"


_SHARES = {
    Work.FORWARD: _FORWARD_SHARE,
    Work.BACKWARD: 1 - _FORWARD_SHARE,
    Work.INPUTS: (1 - _FORWARD_SHARE) / 2,
    Work.WEIGHTS: (1 - _FORWARD_SHARE) / 2,
}
"""Of a gradient's time."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a micro-batch through a segment of the model."""

    work: Work
    share: float
    """The segment's part of the model's operations."""
    samples: int
    slice_samples: float
    """Of a worker's slice of the batch: what is given for a gradient is of so many, and of the whole model."""
    recomputes: bool = False
    """Whether a forward pass is done again first."""

    flops: float = 0.0
    """Of matrix products, in a forward pass of one sample through the segment."""
    moved_bytes: float = 0.0
    """What all other operations of that pass read and write."""
    stage_share: float = 1.0
    """The segment's part of the operations of its stage: what is given for a pass is of a whole stage."""
    measured_s: float | None = None
    """What it takes on this machine, where that was measured."""

    @property
    def gradient_share(self) -> float:
        """Its part of the time of a gradient."""
        return _SHARES[self.work] + (_FORWARD_SHARE if self.recomputes else 0.0)

    @property
    def delay_share(self) -> float:
        """Its part of a straggler's delay, which is one of each micro-batch that passes forward through its stage."""
        return self.stage_share if self.work is Work.FORWARD else 0.0


class Price(Protocol):
    """What one rank's computations cost."""

    @property
    def fixed(self) -> float | None:
        """Its slowness, if nothing is drawn: ranks of one run that are equally slow then pay the same for a pass.
        None: something is drawn for each."""
        ...

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        """Of a piece of work on a segment of the model. The whole model is segment 0.

        `size` is the samples of a gradient; of an update, the bytes of the parameters that it changes.
        """
        ...

    def pass_seconds(self, one: Pass) -> float:
        """Of a pass through a segment."""
        ...

    def unused(self) -> list[float]:
        """What was drawn beforehand and not used yet: a checkpoint keeps it."""
        ...

    def put_back(self, draws: Sequence[float]) -> None:
        """Use these first. Before anything was drawn."""
        ...


class Pricing(Protocol):
    """What computations cost, before a rank's own slowness."""

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price: ...


@dataclass(frozen=True, slots=True)
class Given:
    """Each gradient is a draw; an update takes no time."""

    times: Times

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        if isinstance(self.times, Phases):
            return _InPhases(self.times, stragglers.factor(rank), delays_of(rank, stragglers, rng))
        return _Drawn(self.times, rank, stragglers, rng)


class _Drawn:
    __slots__ = ("_block", "_draw")

    fixed = None

    def __init__(self, times: Times, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> None:
        self._block: list[Iterator[float]] = [iter([])]
        """What was drawn beforehand, alone in a list: the generator must not refer to this object, or only the garbage
        collector could free the two."""
        self._draw = _draws(times, rank, stragglers, rng, self._block).__next__

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        return self._draw() if kind is Work.GRADIENT else 0.0

    def unused(self) -> list[float]:
        return list(copy.copy(self._block[0]))

    def put_back(self, draws: Sequence[float]) -> None:
        self._block[0] = iter(list(draws))

    def pass_seconds(self, one: Pass) -> float:
        return self._draw() * one.gradient_share * one.share * one.samples / one.slice_samples


class DrawsNothing:
    """A price that draws nothing beforehand; delays are drawn when they are due."""

    __slots__ = ("_extra", "_factor", "fixed")

    def __init__(self, factor: float, extra: Callable[[], float] | None) -> None:
        """`extra` draws a delay. None: there are none."""
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
    """Each pass through a stage takes its given time, whatever the stage and the samples."""

    __slots__ = ("_times",)

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
    """Draws what comes on top of each of a rank's gradients, in seconds. None: nothing does."""
    delay = stragglers.delay_of(rank)
    return None if delay is None else (lambda: delay.draw(rng))


def _nothing() -> float:
    return 0.0


def ready_shares(bucket_shares: Sequence[float]) -> list[float]:
    """After which share of a gradient's time each bucket is ready, given their shares of the parameters."""
    ready, moments = _FORWARD_SHARE, []
    for share in bucket_shares:
        ready += share * (1 - _FORWARD_SHARE)
        moments.append(ready)
    return moments


def _draws(
    times: Times, rank: int, stragglers: Stragglers, rng: np.random.Generator, block: list[Iterator[float]]
) -> Iterator[float]:
    factor, delay = stragglers.factor(rank), stragglers.delay_of(rank)
    if delay is not None:
        while True:
            yield times.draw(rng) * factor + delay.draw(rng)
    while True:  # drawing many at once gives the same numbers, for the price of a few single draws
        yield from block[0]
        block[0] = iter((times.sample(rng, _DRAWS) * factor).tolist())
