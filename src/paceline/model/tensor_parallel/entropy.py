"""Cross entropy over classes that are split among ranks. Only a few numbers per sample are reduced.

Each rank has some classes of every sample. It computes the maximum over its classes, then the sum of exponentials and
the value of the target class (if the rank has it). The rest is computed from the reduced values, equally on every rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NARROW = (torch.float16, torch.bfloat16)
_NONE, _MEAN = 0, 1
"""Torch's numbers of reductions. 2 is the sum."""


def highest(values: Tensor, dim: int) -> Tensor:
    """Return the maximum of this rank's values along a dimension.

    The maximum affects later results only by rounding.
    """
    return _wide(values.detach()).amax(dim)


def entropy_sums(
    values: Tensor, most: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, *part: int
) -> Tensor:
    """Return sums over this rank's classes, stacked: the sum of exponentials, the target's value, and with smoothing
    the (weighted) sum of all values.
    """
    dim, _, _, start, count = part
    shifted = _wide(values) - most.unsqueeze(dim)
    sums = [shifted.exp().sum(dim), _own(shifted, target, dim, start, count)]
    if smoothing:
        own = None if weight is None else weight.narrow(0, start, count)
        sums.append((shifted if own is None else shifted * _along(own, shifted, dim)).sum(dim))
    return torch.stack(sums)


def cross_entropy(
    sums: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    smoothing: float,
    classes: int,
) -> Tensor:
    """Return torch's cross_entropy, computed from the sums over all ranks."""
    counted, weights = _weights(sums, target, weight, ignored, classes)
    log_sum = sums[0].log()
    loss = _reduced((log_sum - sums[1]) * weights, counted, weights, reduction)
    if not smoothing:
        return loss
    total: Any = classes if weight is None else weight.sum()
    smooth = _reduced(total * log_sum - sums[2], counted, weights, reduction)
    return (1 - smoothing) * loss + smoothing / classes * smooth


def exponentials(values: Tensor, most: Tensor, dim: int) -> Tensor:
    """Return the sum of exp(value - maximum over all ranks) over this rank's classes."""
    return (_wide(values) - most.unsqueeze(dim)).exp().sum(dim)


def log_of(exponential_sum: Tensor, most: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the normalizer of log_softmax."""
    return (exponential_sum.log() + most).unsqueeze(dim)


def minus(values: Tensor, log_sum: Tensor) -> Tensor:
    """Return this rank's part of log_softmax."""
    return _wide(values) - log_sum


def picked(values: Tensor, target: Tensor, *part: int) -> Tensor:
    """Return the values of the target classes; zero for classes of other ranks."""
    dim, _, _, start, count = part
    return _own(values, target, dim, start, count)


def nll(
    found: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, classes: int
) -> Tensor:
    """Return torch's nll_loss of the picked values."""
    counted, weights = _weights(found, target, weight, ignored, classes)
    return _reduced(-found * weights, counted, weights, reduction)


def _wide(values: Tensor) -> Tensor:
    """Convert 16-bit values to float32: sums of thousands of values need it. Torch does the same."""
    return values.float() if values.dtype in _NARROW else values


def _own(values: Tensor, target: Tensor, dim: int, start: int, count: int) -> Tensor:
    inside = (target >= start) & (target < start + count)
    place = torch.where(inside, target - start, 0).unsqueeze(dim)
    return values.gather(dim, place).squeeze(dim).masked_fill(~inside, 0.0)


def _along(vector: Tensor, values: Tensor, dim: int) -> Tensor:
    return vector.view([-1 if d == dim else 1 for d in range(values.dim())])


def _weights(
    values: Tensor, target: Tensor, weight: Tensor | None, ignored: int, classes: int
) -> tuple[Tensor, Tensor]:
    """Return which samples count, and their weights."""
    counted = target != ignored
    fits = (target >= 0) & (target < classes) | ~counted
    torch._assert_async(fits.all(), f"a target is out of bounds: it must be 0 to {classes - 1}")
    if weight is None:
        return counted, counted.to(values.dtype)
    own = weight.to(values.dtype)[torch.where(counted, target, 0)]
    return counted, own.masked_fill(~counted, 0.0)


def _reduced(losses: Tensor, counted: Tensor, weights: Tensor, reduction: int) -> Tensor:
    losses = losses.masked_fill(~counted, 0.0)
    if reduction == _NONE:
        return losses
    return losses.sum() / weights.sum() if reduction == _MEAN else losses.sum()
