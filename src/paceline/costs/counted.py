"""Prices by counting: operations divided by a device's speed.

A backward pass has twice the work of its forward pass: the gradients of the inputs and of the weights. So a gradient
costs three forward passes, and four if activations are recomputed. It launches as many operations as the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.costs.devices import Device
from paceline.costs.prices import DrawsNothing, Pass, Price, Work, delays_of
from paceline.costs.stragglers import Stragglers

_BACKWARD, _FORWARD = Work.BACKWARD, Work.FORWARD  # faster to look up here than in the class
_UPDATE_TOUCHES = 7
"""Reads and writes per parameter in an update: Adam reads it, its gradient and two moments, and writes three."""


class Operations(NamedTuple):
    """Operations of a forward pass of one sample."""

    flops: float
    """Floating-point operations of matrix products."""
    moved_bytes: float
    """Bytes read and written by all other operations."""
    launches: int = 0
    """Number of operations, for any number of samples."""

    def times(self, samples: float) -> Operations:
        """Return the operations of a pass of several samples."""
        return Operations(samples * self.flops, samples * self.moved_bytes, self.launches)


def work_seconds(device: Device, work: Work, forward: Operations, *, recomputes: bool = False) -> float:
    """Return the seconds of a pass, given the operations of its forward pass."""
    flops, moved_bytes, launches = forward
    if work is _FORWARD:
        return device.seconds(flops, moved_bytes, launches)
    again_s = device.seconds(flops, moved_bytes, launches) if recomputes else 0.0
    if work is _BACKWARD:
        return again_s + device.seconds(2 * flops, 2 * moved_bytes, launches)
    return again_s + device.seconds(flops, moved_bytes, launches / 2)


def update_seconds(device: Device, nbytes: float) -> float:
    """Return the seconds of an update of parameters with `nbytes` bytes."""
    return device.seconds(0.0, _UPDATE_TOUCHES * nbytes)


@dataclass(frozen=True, slots=True)
class Counted:
    """Prices from a device: a gradient costs its operations, an update the time to move its bytes."""

    device: Device
    of_model: Callable[[], Operations]
    """Function that counts the whole model. Called only if a gradient of the whole model is priced."""
    recompute: bool = False
    """Whether a gradient of the whole model computes the forward pass twice."""

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        return _ByOperations(self, stragglers.factor(rank), delays_of(rank, stragglers, rng))


class _ByOperations(DrawsNothing):
    __slots__ = ("_counted",)

    def __init__(self, counted: Counted, factor: float, extra: Callable[[], float] | None) -> None:
        super().__init__(factor, extra)
        self._counted = counted

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        counted = self._counted
        if kind is Work.UPDATE:
            return update_seconds(counted.device, size) * self._factor
        forward = counted.of_model().times(size)
        seconds = work_seconds(counted.device, _FORWARD, forward)
        seconds += work_seconds(counted.device, _BACKWARD, forward, recomputes=counted.recompute)
        return seconds * self._factor + self._extra()

    def pass_seconds(self, one: Pass) -> float:
        one_sample = Operations(one.flops, one.moved_bytes, one.launches)
        if one.share and not any(one_sample):  # a share of a model that is not cut
            whole = self._counted.of_model()
            launches = round(whole.launches * one.share)
            one_sample = Operations(whole.flops * one.share, whole.moved_bytes * one.share, launches)
        forward = one_sample.times(one.samples)
        seconds = work_seconds(self._counted.device, one.work, forward, recomputes=one.recomputes)
        return seconds * self._factor + (self._delay_s(one) if one.work is _FORWARD else 0.0)
