"""Reductions over a tensor group. The result has the same bits on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from paceline.collectives.patterns import all_gather, all_reduce, reduce_scatter
from paceline.context import GroupReduction, Net, ReduceKind

if TYPE_CHECKING:
    from torch import Tensor


async def reduce_value(net: Net, value: Tensor, how: ReduceKind) -> Tensor:
    """Return the reduction of a value over all ranks. `value` may be overwritten."""
    if how == "gather":
        return await _gathered(net, value)
    if how == "take":
        return _own(net, value)
    if how == "scatter":
        await reduce_scatter(net, value)
        return _own(net, value)
    await all_reduce(net, value, "shared" if net.shares_memory else "ring", op=how)
    return value


async def reduce_values(
    net: Net, values: Sequence[Tensor], reductions: Sequence[GroupReduction]
) -> list[Tensor]:
    """Return the values that cross a cut, after the reductions there."""
    made = list(values)
    for each in reductions:
        made[each.place] = await reduce_value(net, made[each.place], each.how)
    return made


async def _gathered(net: Net, part: Tensor) -> Tensor:
    whole = part.new_empty((net.size * part.shape[0], *part.shape[1:]))
    whole[net.rank * part.shape[0] : (net.rank + 1) * part.shape[0]] = part
    await all_gather(net, whole)
    return whole


def _own(net: Net, whole: Tensor) -> Tensor:
    """Return a copy of this rank's part, so that the whole tensor can be freed."""
    length = whole.shape[0] // net.size
    return whole[net.rank * length : (net.rank + 1) * length].clone()


async def sum_together(net: Net, gradients: Sequence[Tensor]) -> None:
    """Sum several tensors over the ranks in one all-reduce, in place."""
    if net.size == 1 or not gradients:
        return
    ends = list(accumulate((gradient.numel() for gradient in gradients), initial=0))
    flat = gradients[0].new_empty(ends[-1])
    for gradient, (start, stop) in zip(gradients, pairwise(ends), strict=True):
        flat[start:stop] = gradient.reshape(-1)
    await all_reduce(net, flat, "ring")
    for gradient, (start, stop) in zip(gradients, pairwise(ends), strict=True):
        gradient.copy_(flat[start:stop].view(gradient.shape))
