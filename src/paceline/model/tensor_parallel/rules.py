"""Rules: how each operation propagates a split, and what changes in a rank's graph.

An operation without a rule is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import fx

from paceline.model.tensor_parallel.dimensions import DIMENSIONS
from paceline.model.tensor_parallel.entropies import ENTROPIES
from paceline.model.tensor_parallel.following import Follower, NoRule, Rule, State, argument, dim_of, first_of
from paceline.model.tensor_parallel.operations import attend, drop_out
from paceline.model.tensor_parallel.spec import Split
from paceline.model.tensor_parallel.views import Refine

# Elementwise operations


def _pointwise(look: Follower, node: fx.Node) -> State:
    dims = len(look.shape(node))
    found: Split | None = None
    for value in node.all_input_nodes:
        if (split := look.split(value)) is not None:
            split = split.moved(split.dim + dims - len(look.shape(value)))
            if found is not None and found != split:
                raise NoRule("its inputs are split in different ways")
            found = split if found is None else replace(found, origins=found.origins | split.origins)
    assert found is not None
    for value in node.all_input_nodes:
        if look.split(value) is None and _has_shape(value):
            look.take(node, value, found.moved(found.dim - dims + len(look.shape(value))))
    return found


def _has_shape(value: fx.Node) -> bool:
    return hasattr(value.meta.get("val"), "shape")


def _dropout(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    if float(argument(node, 1, "p")) > 0 and argument(node, 2, "train"):
        look.become(node, drop_out, [*node.args, look.order(value)], split)
    return split


def _unchanged(look: Follower, node: fx.Node) -> State:
    return first_of(look, node)[1]


def _along_another(place: int) -> Rule:
    """Return the rule of operations such as softmax. Values along one dimension depend on each other, so this
    dimension must be whole.
    """

    def rule(look: Follower, node: fx.Node) -> State:
        value, split = first_of(look, node)
        if dim_of(node, place, "dim", len(look.shape(value))) == split.dim:
            raise NoRule("it needs all values along the split dimension")
        return split

    return rule


def _norm(look: Follower, node: fx.Node) -> State:
    """Rule of norms over the last dimensions."""
    value, split = first_of(look, node)
    normed: Any = node.args[1]
    if split.dim >= len(look.shape(value)) - len(normed):
        raise NoRule("it needs all values along the split dimension")
    for parameter in node.all_input_nodes:
        if parameter is not value:
            look.take(node, parameter, split.moved(-1))
    return split


def _reduced(look: Follower, node: fx.Node) -> State:
    """Rule of reductions such as a mean."""
    value, split = first_of(look, node)
    dims, given = len(look.shape(value)), argument(node, 1, "dim")
    gone = {d % dims for d in ([given] if isinstance(given, int) else given or range(dims))}
    if split.dim in gone:
        raise NoRule("it needs all values along the split dimension")
    keeps = len(look.shape(node)) == dims
    return split if keeps else split.moved(split.dim - sum(d < split.dim for d in gone))


# Products


def _matmul(look: Follower, node: fx.Node) -> State:
    left: Any = node.args[0]
    right: Any = node.args[1]
    a, b = look.split(left), look.split(right)
    dims, left_dims, right_dims = (len(look.shape(each)) for each in (node, left, right))
    if min(left_dims, right_dims) < 2:
        raise NoRule("it multiplies with a vector")
    # Dimensions are counted from the right: -1 and -2 are the matrix dimensions.
    if a is not None and b is not None:
        return _product_of_two(look, node, a.moved(a.dim - left_dims), b.moved(b.dim - right_dims))
    if a is not None and a.dim != left_dims - 1:
        _take_batch(look, node, right, right_dims, a, a.dim - left_dims)
        return a.moved(a.dim - left_dims + dims)
    if b is not None and b.dim != right_dims - 2:
        _take_batch(look, node, left, left_dims, b, b.dim - right_dims)
        return b.moved(b.dim - right_dims + dims)
    raise NoRule("one of its inputs is split where both must be")


def _product_of_two(look: Follower, node: fx.Node, a: Split, b: Split) -> State:
    if a.moved(0) != b.moved(0) or ((a.dim, b.dim) != (-1, -2) and not a.dim == b.dim < -2):
        raise NoRule("its inputs are split in different ways")
    if a.dim < -2:
        return a.moved(a.dim + len(look.shape(node)))
    look.sum(node)
    return None


def _take_batch(look: Follower, node: fx.Node, value: fx.Node, dims: int, split: Split, at: int) -> None:
    """Use the whole other matrix, or its part if the split is in a batch dimension."""
    look.take(node, value, split.moved(at + dims if at < -2 else -1 - dims))


def _attention(look: Follower, node: fx.Node) -> State:
    query, key, value = (look.split(each) for each in node.args[:3])
    dims = len(look.shape(node))
    if query is None or key is None or key != value or query.dim >= dims - 2 or not _fit(query, key):
        raise NoRule("its queries, keys and values are not split by heads alike")
    mask, p = argument(node, 3, "attn_mask"), float(argument(node, 4, "dropout_p", 0.0))
    if isinstance(mask, fx.Node):
        if look.split(mask) is not None:
            raise NoRule("its mask is split")
        look.take(node, mask, query.moved(query.dim - dims + len(look.shape(mask))))
    if p > 0:
        scale, is_causal = node.kwargs.get("scale"), argument(node, 5, "is_causal", False)
        look.become(node, attend, [*node.args[:3], mask, p, is_causal, scale], query)
    return query


def _fit(query: Split, key: Split) -> bool:
    """Return whether each rank has the keys of its queries. Queries that share a key are on the same rank."""
    if query == key:
        return True
    if query != replace(key, length=query.length, unit=query.unit) or query.length % key.units:
        return False
    unit = query.length // key.units
    if query.unit != unit:
        raise Refine(query.origins, unit=int(unit * query.scale))
    return True


_POINTWISE = (
    *(
        "relu",
        "gelu",
        "silu",
        "tanh",
        "sigmoid",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "hardtanh",
        "hardswish",
    ),
    *(
        "hardsigmoid",
        "relu6",
        "mish",
        "softplus",
        "log_sigmoid",
        "threshold",
        "exp",
        "log",
        "sqrt",
    ),
    *(
        "rsqrt",
        "neg",
        "abs",
        "square",
        "pow",
        "erf",
        "sin",
        "cos",
        "reciprocal",
        "clamp",
        "clamp_min",
        "clamp_max",
    ),
    *(
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "where",
        "masked_fill",
        "lt",
        "le",
        "gt",
        "ge",
    ),
    *("eq", "ne", "logical_not", "logical_and", "to", "_to_copy", "type_as"),
)

RULES: Mapping[str, Rule] = {
    **DIMENSIONS,
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys(("contiguous", "clone", "detach", "alias", "lift_fresh_copy"), _unchanged),
    **ENTROPIES,
    **dict.fromkeys(("softmax", "_softmax"), _along_another(1)),
    **dict.fromkeys(("matmul", "bmm", "mm"), _matmul),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("mean", "sum", "var"), _reduced),
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
}
"""Rules by the names of torch's operations."""
