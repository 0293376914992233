"""Arithmetic on flat tensors. It does nothing if they have no data, as in simulations without values.

Torch supports such meta tensors, but an operation on them takes longer than a whole simulated message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def copy_of(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_meta else tensor.clone()


def spare_like(tensor: Tensor) -> Tensor:
    """Allocate another tensor of this size. Its content is undefined."""
    return tensor if tensor.is_meta else tensor.new_empty(tensor.shape)


def overwrite(tensor: Tensor, by: Tensor) -> None:
    """Copy `by` into `tensor`, unless both are the same memory."""
    if not tensor.is_meta and tensor.data_ptr() != by.data_ptr():
        tensor.copy_(by)


def add(tensor: Tensor, other: Tensor, minus: Tensor | None = None, *, weight: float = 1.0) -> None:
    """Add `weight` times `other`, or times `other - minus`, in place."""
    if not tensor.is_meta:
        tensor.add_(other if minus is None else other - minus, alpha=weight)


def weigh(into: Tensor, terms: Iterable[tuple[Tensor, float]]) -> None:
    """Write the weighted sum of the terms into `into`, added from the left. Only the first term may be `into` itself.

    Without data the terms are not evaluated.
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
    """Return the sum of squares, as a tensor with one element."""
    double = tensor.double()
    return (double @ double).reshape(1)


def number_in(tensor: Tensor) -> float:
    """Return the single element of a tensor; NaN if it has no data."""
    return math.nan if tensor.is_meta else float(tensor.item())


def cut(tensor: Tensor, shards: Sequence[slice]) -> list[Tensor]:
    """Return a view of each shard. A single shard is returned as the tensor itself, which backends recognize."""
    return [tensor] if len(shards) == 1 else [tensor[shard] for shard in shards]
