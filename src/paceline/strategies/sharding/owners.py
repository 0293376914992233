"""A flat tensor whose parts have owners: each part is summed at its owner, or comes from it to everybody."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.collectives import all_gather, broadcast, reduce, reduce_scatter
from paceline.context import Net
from paceline.schedules.steps import chunk_bounds

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["are_chunks", "fill_from_owners", "sum_to_owners"]


async def sum_to_owners(net: Net, flat: Tensor, parts: Sequence[slice]) -> Tensor:
    """Leave the sum of each part on the rank that owns it; return this rank's, a view. The rest is used up."""
    if are_chunks(parts):
        return await reduce_scatter(net, flat)
    for owner, part in enumerate(parts):
        if part.start < part.stop:
            await reduce(net, flat[part], root=owner)
    return flat[parts[net.rank]]


async def fill_from_owners(net: Net, flat: Tensor, parts: Sequence[slice]) -> None:
    """Overwrite each part by its owner's."""
    if are_chunks(parts):
        await all_gather(net, flat)
        return
    for owner, part in enumerate(parts):
        if part.start < part.stop:
            await broadcast(net, flat[part], root=owner)


def are_chunks(parts: Sequence[slice]) -> bool:
    """Whether the parts are cut as collectives cut a tensor: not so where an optimizer needs whole layers."""
    bounds = chunk_bounds(parts[-1].stop, len(parts))
    return all((part.start, part.stop) == ends for part, ends in zip(parts, pairwise(bounds), strict=True))
