"""Rules of operations that move, split, merge and join dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import fx

from paceline.model.tensor_parallel.following import (
    Follower,
    NoRule,
    Rule,
    State,
    argument,
    dim_of,
    first_of,
    name_of,
)
from paceline.model.tensor_parallel.views import Refine, viewed


def _view(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    found = viewed(split, look.shape(value), look.shape(node))
    if found is None:
        raise NoRule("the split dimension is merged with others")
    name = name_of(node)
    if name == "unflatten":
        place = found.dim - dim_of(node, 1, "dim", len(look.shape(value)))
        if 0 <= place < len(argument(node, 2, "sizes")):  # in all other cases another dimension is split
            look.resize(node, 2, place, found)
    elif name != "flatten":
        look.resize(node, 1, found.dim, found)
    return found


def _expand(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    split = split.moved(split.dim + len(look.shape(node)) - len(look.shape(value)))
    look.resize(node, 1, split.dim, split)
    return split


def _permute(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    dims = len(look.shape(value))
    name = name_of(node)
    order = list(range(dims))
    if name == "permute":
        order = [int(d) % dims for d in node.args[1]]  # type: ignore[union-attr, arg-type]
    elif dims > 1:
        a, b = (0, 1) if name in ("t", "numpy_T") else (dim_of(node, n, f"dim{n - 1}", dims) for n in (1, 2))
        order[a], order[b] = order[b], order[a]
    return split.moved(order.index(split.dim))


def _select(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    dim = dim_of(node, 1, "dim", len(look.shape(value)))
    if dim == split.dim:
        raise Refine(split.origins, blocks=look.shape(value)[dim])
    return split.moved(split.dim - (dim < split.dim))


def _unbind(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    dim = dim_of(node, 1, "dim", len(look.shape(value)))
    if dim == split.dim:
        raise Refine(split.origins, blocks=look.shape(value)[dim])
    return [split.moved(split.dim - (dim < split.dim))] * look.shape(value)[dim]


def _slice(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    dim = dim_of(node, 1, "dim", len(look.shape(value)))
    if dim != split.dim or list(look.shape(value)) == list(look.shape(node)):
        return split
    whole, part = look.shape(value)[dim], look.shape(node)[dim]
    start = int(argument(node, 2, "start") or 0) % whole
    if whole % part or start % part:
        raise NoRule("it takes a part of the split dimension")
    if split.blocks != whole // part:
        raise Refine(split.origins, blocks=whole // part)
    block = replace(split, blocks=1)
    look.become(node, _block, [value, dim, start // part], block)
    return block


def _block(value: Any, dim: int, number: int, *part: int) -> Any:
    count = part[-1]
    return value.narrow(dim, number * count, count)


def _split(look: Follower, node: fx.Node) -> State:
    """Rule of split, split_with_sizes and chunk."""
    value, split = first_of(look, node)
    dim = dim_of(node, 2, "dim", len(look.shape(value)))
    sizes = [part.shape[dim] for part in node.meta["val"]]
    if dim != split.dim:
        return [split] * len(sizes)
    if len(set(sizes)) > 1:
        raise NoRule("it splits the split dimension unevenly")
    if split.blocks != len(sizes):
        raise Refine(split.origins, blocks=len(sizes))
    block = replace(split, blocks=1)
    look.become(node, _blocks, [value, dim, len(sizes)], block)
    return [block] * len(sizes)


def _blocks(value: Any, dim: int, blocks: int, *part: int) -> Any:
    return value.split([part[-1]] * blocks, dim)


def _glu(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    if dim_of(node, 1, "dim", len(look.shape(value)), -1) != split.dim:
        return split
    if split.blocks != 2:
        raise Refine(split.origins, blocks=2)
    return replace(split, blocks=1)


def _unsqueeze(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    dim = dim_of(node, 1, "dim", len(look.shape(value)) + 1)
    return split.moved(split.dim + (dim <= split.dim))


def _squeeze(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    shape = look.shape(value)
    given = argument(node, 1, "dim")
    if given is None:
        raise NoRule("it may remove the split dimension")
    asked = [given] if isinstance(given, int) else list(given)
    gone = {d % len(shape) for d in asked if shape[d % len(shape)] == 1}
    if split.dim in gone:
        raise NoRule("it removes the split dimension")
    return split.moved(split.dim - sum(d < split.dim for d in gone))


def _joined(look: Follower, node: fx.Node) -> State:
    """Rule of cat and stack: the inputs are split alike, in another dimension than the joined one."""
    values: Any = node.args[0]
    splits = [look.split(value) for value in values]
    first = splits[0]
    if first is None or any(split != first for split in splits):
        raise NoRule("its inputs are split in different ways")
    stacks = name_of(node) == "stack"
    dim = dim_of(node, 1, "dim", len(look.shape(values[0])) + stacks)
    if stacks:
        return first.moved(first.dim + (dim <= first.dim))
    if dim == first.dim:
        raise NoRule("it joins along the split dimension")
    return first


def _size(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    if dim_of(node, 1, "dim", len(look.shape(value))) == split.dim:
        raise NoRule("it reads the size of the split dimension")
    return None


DIMENSIONS: Mapping[str, Rule] = {
    **dict.fromkeys(("reshape", "_unsafe_view", "unflatten", "flatten"), _view),
    **dict.fromkeys(("transpose", "permute", "t", "numpy_T", "swapaxes"), _permute),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("cat", "stack"), _joined),
    "expand": _expand,
    "select": _select,
    "unbind": _unbind,
    "slice": _slice,
    "glu": _glu,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "sym_size": _size,
}
