"""Memory of fused attention.

Devices compute `scaled_dot_product_attention` as one operation. It stores its inputs, its output and one number per
query, but no matrix of all pairs of tokens. On the meta device torch decomposes the operation, and would store that
matrix. If a model computes the matrix itself, the matrix counts on every device, in memory and in time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

_ATTENTION = (scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)


class FusedAttention(TorchFunctionMode):
    """Context in which attention on the meta device stores the same tensors as a fused operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _ATTENTION:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        inputs = [given[name] for name in ("query", "key", "value")]
        if not all(each.is_meta for each in inputs):
            return func(*args, **(kwargs or {}))
        return _Fused.apply(*inputs)  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = query.shape[:-1]
        made = _output(query, value.shape[-1])
        sums = query.new_empty(rows, dtype=torch.promote_types(query.dtype, torch.float32))
        ctx.save_for_backward(query, key, value, made, sums)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])


def _output(query: Tensor, width: int) -> Tensor:
    """Return memory for the output.

    Kernels store the heads of a token together, so joining the heads copies nothing.
    """
    *batch, heads, length, _ = query.shape if query.ndim > 3 else (1, *query.shape)
    made = query.new_empty([*batch, length, heads, width]).transpose(-2, -3)
    return made if query.ndim > 3 else made[0]
