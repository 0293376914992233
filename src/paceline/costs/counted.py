"""Prices by counting: operations divided by a device's speed.

A backward pass has twice the operations of its forward pass: the gradients of the inputs and of the weights. So a
gradient costs three forward passes, and four if activations are recomputed.
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
            return counted.device.seconds(0.0, _UPDATE_TOUCHES * size) * self._factor
        forwards = (4 if counted.recompute else 3) * size
        return counted.device.seconds(*counted.of_model()) * forwards * self._factor + self._extra()

    def pass_seconds(self, one: Pass) -> float:
        operations = one.flops, one.moved_bytes
        if one.share and not any(operations):  # a part of a model that is not cut
            flops, moved_bytes = self._counted.of_model()
            operations = flops * one.share, moved_bytes * one.share
        forward_s = self._counted.device.seconds(*operations) * one.samples * self._factor
        if one.work is _FORWARD:
            return forward_s + self._delay_s(one)
        again_s = forward_s if one.recomputes else 0.0
        return again_s + (2 * forward_s if one.work is _BACKWARD else forward_s)
