"""Arithmetic on flat tensors that may have no data, as in simulations without mathematics: there it does nothing.

Torch could be asked to do it all the same. But for torch to find that there is nothing to do takes longer than a whole
simulated message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["add", "copy_of", "cut", "number_in", "overwrite", "spare_like", "square_of", "weigh"]


def copy_of(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_meta else tensor.clone()


def spare_like(tensor: Tensor) -> Tensor:
    """Memory for another tensor of this size; what is in it is not defined."""
    return tensor if tensor.is_meta else tensor.new_empty(tensor.shape)


def overwrite(tensor: Tensor, by: Tensor) -> None:
    if not tensor.is_meta:
        tensor.copy_(by)


def add(tensor: Tensor, other: Tensor, minus: Tensor | None = None, *, weight: float = 1.0) -> None:
    """Add a weight times another tensor, or times the difference of two."""
    if not tensor.is_meta:
        tensor.add_(other if minus is None else other - minus, alpha=weight)


def weigh(into: Tensor, terms: Iterable[tuple[Tensor, float]]) -> None:
    """The sum of tensors times their weights, from the left. Of them only the first may be `into` itself.

    Where there is no data, nothing is asked of the terms.
    """
    if into.is_meta:
        return
    import torch

    for number, (tensor, weight) in enumerate(terms):
        if number:
            into.add_(tensor, alpha=weight)
        elif tensor is not into or weight != 1.0:
            torch.mul(tensor, weight, out=into)


def square_of(tensor: Tensor) -> Tensor:
    """The sum of its squares, as a tensor of one number."""
    double = tensor.double()
    return (double @ double).reshape(1)


def number_in(tensor: Tensor) -> float:
    """The one number of a tensor; not a number where it has no data."""
    return math.nan if tensor.is_meta else float(tensor.item())


def cut(tensor: Tensor, shards: Sequence[slice]) -> list[Tensor]:
    """A view of each shard. Where one shard is all there is, it is the tensor itself: worlds know it by that."""
    return [tensor] if len(shards) == 1 else [tensor[shard] for shard in shards]
