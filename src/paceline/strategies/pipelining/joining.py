"""What the ranks of a tensor group make of a value together, to the same bits on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from paceline.collectives import all_gather, all_reduce, reduce_scatter
from paceline.context import Joining, Net

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["joined", "sum_together"]


async def joined(net: Net, value: Tensor, how: Joining) -> Tensor:
    """What comes of a value that each rank has. The value may be used up."""
    if how == "gather":
        return await _gathered(net, value)
    if how == "take":
        return _own(net, value)
    if how == "scatter":
        await reduce_scatter(net, value)
        return _own(net, value)
    await all_reduce(net, value, "shared" if net.shares_memory else "ring", op=how)
    return value


async def _gathered(net: Net, part: Tensor) -> Tensor:
    whole = part.new_empty((net.size * part.shape[0], *part.shape[1:]))
    whole[net.rank * part.shape[0] : (net.rank + 1) * part.shape[0]] = part
    await all_gather(net, whole)
    return whole


def _own(net: Net, whole: Tensor) -> Tensor:
    """A copy, so that the whole need not stay."""
    length = whole.shape[0] // net.size
    return whole[net.rank * length : (net.rank + 1) * length].clone()


async def sum_together(net: Net, gradients: Sequence[Tensor]) -> None:
    """Sum several tensors over the ranks, as one."""
    if net.size == 1 or not gradients:
        return
    ends = list(accumulate((gradient.numel() for gradient in gradients), initial=0))
    flat = gradients[0].new_empty(ends[-1])
    for gradient, (start, stop) in zip(gradients, pairwise(ends), strict=True):
        flat[start:stop] = gradient.reshape(-1)
    await all_reduce(net, flat, "ring")
    for gradient, (start, stop) in zip(gradients, pairwise(ends), strict=True):
        gradient.copy_(flat[start:stop].view(gradient.shape))
