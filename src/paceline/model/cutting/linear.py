"""Products with a transposed parameter, such as `x @ layer.weight.T`, as the operation that `nn.Linear` computes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.matmul.default, _ATEN.mm.default)
_TRANSPOSES = (_ATEN.t.default, _ATEN.numpy_T.default, _ATEN.mT.default)


def as_linear(graph: fx.Graph, parameters: Collection[fx.Node]) -> None:
    """Replace these products in a graph. `tensor` can then split them."""
    for node in list(graph.nodes):
        given = node.args[1] if node.target in _PRODUCTS else None
        if isinstance(given, fx.Node) and (weight := _transposed(given)) in parameters:
            node.target, node.args = _ATEN.linear.default, (node.args[0], weight)
            if not given.users:
                graph.erase_node(given)


def _transposed(node: fx.Node) -> fx.Node | None:
    """Return the matrix that an operation transposes. None if it does something else."""
    if not node.args or not isinstance(matrix := node.args[0], fx.Node):
        return None
    value, rest = matrix.meta.get("val"), list(node.args[1:])
    if not isinstance(value, torch.Tensor) or value.dim() != 2:
        return None
    return matrix if node.target in _TRANSPOSES or _swaps(node.target, rest) else None


def _swaps(target: Any, rest: list[Any]) -> bool:
    if target is _ATEN.permute.default:
        return [dim % 2 for dim in rest[0]] == [1, 0]
    return target is _ATEN.transpose.int and {dim % 2 for dim in rest} == {0, 1}
