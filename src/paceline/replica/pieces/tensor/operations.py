"""What stands in a rank's graph in place of operations that look at whole tensors.

Random numbers are drawn for the whole value and the rank's part is taken: so every rank draws as much as one worker
alone would, and the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.replica.pieces.tensor.spec import narrowed

__all__ = ["attend", "drop_out", "enter", "look_up"]


def enter(value: Tensor) -> Tensor:
    """Megatron's f: the value itself, by another name. Its gradient is summed over the ranks."""
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
    """`order`: that of the whole value's dimensions in memory, in which torch draws."""
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
    """Attention with dropout, which torch computes by these same operations on a processor."""
    factor = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query * factor) @ (key * factor).transpose(-2, -1)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    order = range(scores.dim())
    return drop_out(scores.softmax(-1), p, True, order, dim, blocks, length, start, count) @ value


def look_up(weight: Tensor, indices: Tensor, padding: int, start: int) -> Tensor:
    """The rows that this rank has, and zeros for the others."""
    inside = (indices >= start) & (indices < start + len(weight))
    own = torch.where(inside, indices - start, 0)
    padding = padding - start if start <= padding < start + len(weight) else -1
    found: Tensor = torch.ops.aten.embedding.default(weight, own, padding)
    return found.masked_fill(~inside.unsqueeze(-1), 0.0)
