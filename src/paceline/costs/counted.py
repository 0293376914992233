"""Prices by counting: operations divided by a device's speed.

A backward pass has twice the work of its forward pass: the gradients of the inputs and of the weights. So a gradient
costs three forward passes, and four if activations are recomputed. It launches as many operations as the forward pass.
Besides, each pass reads the weights of matrix products once, for any number of samples, and the gradient of the weights
is read and written, because micro-batches accumulate it.
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
    weight_bytes: float = 0.0
    """Bytes of weights that matrix products read, for any number of samples."""
    gradient_bytes: float = 0.0
    """Bytes of the gradients of these weights."""

    def times(self, samples: float) -> Operations:
        """Return the operations of a pass of several samples."""
        return self._replace(flops=samples * self.flops, moved_bytes=samples * self.moved_bytes)


def work_seconds(device: Device, work: Work, forward: Operations, *, recomputes: bool = False) -> float:
    """Return the seconds of a pass, given the operations of its forward pass."""
    flops, moved_bytes, launches, weight_bytes, gradient_bytes = forward
    if work is _FORWARD:
        return device.seconds(flops, moved_bytes + weight_bytes, launches)
    again_s = device.seconds(flops, moved_bytes + weight_bytes, launches) if recomputes else 0.0
    if work is _BACKWARD:
        moved_bytes = 2 * moved_bytes + weight_bytes + 2 * gradient_bytes
        return again_s + device.seconds(2 * flops, moved_bytes, launches)
    moved_bytes += weight_bytes if work is Work.INPUTS else 2 * gradient_bytes
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
        one_sample = Operations(
            one.flops, one.moved_bytes, one.launches, one.weight_bytes, one.gradient_bytes
        )
        if one.share and not any(one_sample):  # a share of a model that is not cut
            whole = self._counted.of_model()
            launches = round(whole.launches * one.share)
            one_sample = whole.times(one.share)._replace(
                launches=launches,
                weight_bytes=whole.weight_bytes * one.share,
                gradient_bytes=whole.gradient_bytes * one.share,
            )
        forward = one_sample.times(one.samples)
        seconds = work_seconds(self._counted.device, one.work, forward, recomputes=one.recomputes)
        return seconds * self._factor + (self._delay_s(one) if one.work is _FORWARD else 0.0)
