"""Replacements for operations that depend on whole tensors, in a rank's graph.

Random numbers are drawn for the whole value, and the rank's part is taken. So every rank draws the same numbers as one
worker with the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.model.tensor_parallel.spec import narrowed


def enter(value: Tensor) -> Tensor:
    """Return a view of the value. The gradient of the view is summed over the ranks (Megatron's f)."""
    return value.view_as(value)


def drop_out(
    value: Tensor,
    p: float,
    train: bool,
    order: Sequence[int],
    dim: int,
    blocks: int,
    length: int,
    start: int,
    count: int,
) -> Tensor:
    """`order` is the memory order of the whole value's dimensions, in which torch draws."""
    if not train or p == 0:
        return value
    blocks = blocks if count == 0 else value.shape[dim] // count
    shape = [blocks * length if d == dim else value.shape[d] for d in order]
    ones = value.new_ones(shape).permute([order.index(d) for d in range(value.dim())])
    return value * narrowed(torch.dropout(ones, p, True), dim, length, start, count)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    p: float,
    is_causal: bool,
    scale: float | None,
    dim: int,
    blocks: int,
    length: int,
    start: int,
    count: int,
) -> Tensor:
    """Compute attention with dropout by the same operations as torch on a CPU."""
    factor = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query * factor) @ (key * factor).transpose(-2, -1)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    # As in torch, the output is zero for a query with all keys masked.
    weights = scores.softmax(-1) if mask is None else torch.ops.aten._safe_softmax.default(scores, -1)
    order = range(scores.dim())
    return drop_out(weights, p, True, order, dim, blocks, length, start, count) @ value


def look_up(weight: Tensor, indices: Tensor, padding: int, start: int) -> Tensor:
    """Return the rows that this rank stores, and zeros for the others."""
    inside = (indices >= start) & (indices < start + len(weight))
    own = torch.where(inside, indices - start, 0)
    padding = padding - start if start <= padding < start + len(weight) else -1
    found: Tensor = torch.ops.aten.embedding.default(weight, own, padding)
    return found.masked_fill(~inside.unsqueeze(-1), 0.0)
