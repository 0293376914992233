"""What changes in the graph of one rank of a tensor group, operation by operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from paceline.context.segment import Joining
from paceline.replica.pieces.tensor.operations import look_up
from paceline.replica.pieces.tensor.spec import Split, narrowed

__all__ = [
    "Edit",
    "Given",
    "Made",
    "Step",
    "add_part",
    "become",
    "drop_bias",
    "look_up_part",
    "resize",
    "take_part",
]

Edit = Callable[[fx.Graph, fx.Node, int, int], fx.Node]
"""Of a rank's graph, an operation in it, the rank's position and the group's size: what stands there then."""


def resize(
    graph: fx.Graph,
    node: fx.Node,
    position: int,
    size: int,
    *,
    argument: int,
    place: int | None,
    split: Split,
) -> fx.Node:
    """A size is that of the rank's part."""
    count = split.stretch(position, size)[1]
    given: Any = node.args[argument]
    if place is None:
        node.update_arg(argument, _part_of(graph, node, given, split.length, count))
    else:
        sizes = list(given)
        sizes[place] = _part_of(graph, node, sizes[place], split.length, count)
        node.update_arg(argument, sizes)
    if node.target is torch.ops.aten.view.default:  # a part may lie otherwise in memory than the whole
        node.target = torch.ops.aten.reshape.default
    return node


def _part_of(graph: fx.Graph, node: fx.Node, whole: Any, length: int, count: int) -> Any:
    if not isinstance(whole, fx.Node):
        return whole if whole == -1 else whole // length * count
    with graph.inserting_before(node):
        blocks = graph.call_function(operator.floordiv, (whole, length))
        return graph.call_function(operator.mul, (blocks, count))


def take_part(
    graph: fx.Graph, node: fx.Node, position: int, size: int, *, places: Sequence[int], split: Split
) -> fx.Node:
    """Whole inputs are narrowed to the rank's part."""
    start, count = split.stretch(position, size)
    for place in places:
        with graph.inserting_before(node):
            part = graph.call_function(narrowed, (node.args[place], split.dim, split.length, start, count))
        node.update_arg(place, part)
    return node


def become(
    graph: fx.Graph,
    node: fx.Node,
    position: int,
    size: int,
    *,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    split: Split,
) -> fx.Node:
    """Another function of these arguments (those of the operation by their number) and of the rank's part."""
    part = (split.dim, split.blocks, split.length, *split.stretch(position, size))
    given = [node.args[each.number] if isinstance(each, Given) else each for each in arguments]
    return _replaced(graph, node, function, (*given, *part))


class Given:
    """An operation's own argument."""

    def __init__(self, number: int) -> None:
        self.number = number


class Made(int):
    """What an earlier step gives, by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of several operations that stand in place of one, so that ranks may talk between them."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    """Operations of the traced model, steps before this one (`Made`), and numbers."""
    shape: Sequence[int]
    """Of what it gives."""
    how: Joining | Literal["enter"] | None = None
    """What ranks make of it; enter: each uses it for its part, so they sum its gradient. None: it stays as it is."""
    split: Split | None = None
    """The function is given the rank's part of this, too."""
    gives_part: bool = False
    """It gives the rank's part of a value of that shape."""


def add_part(graph: fx.Graph, node: fx.Node, position: int, size: int, *, split: Split) -> fx.Node:
    """The rank's part are the last arguments of a function."""
    node.args = (*node.args, split.dim, split.blocks, split.length, *split.stretch(position, size))
    return node


def drop_bias(graph: fx.Graph, node: fx.Node, position: int, size: int) -> fx.Node:
    """A bias is added once: by the first rank."""
    if position:
        node.args = node.args[:2]
    return node


def look_up_part(graph: fx.Graph, node: fx.Node, position: int, size: int, *, split: Split) -> fx.Node:
    """The rows of an embedding that the rank has."""
    padding = node.args[2] if len(node.args) > 2 else -1
    start, _ = split.stretch(position, size)
    return _replaced(graph, node, look_up, (node.args[0], node.args[1], padding, start))


def _replaced(
    graph: fx.Graph, node: fx.Node, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> fx.Node:
    with graph.inserting_before(node):
        made = graph.call_function(function, arguments)
    graph.erase_node(node)
    return made
