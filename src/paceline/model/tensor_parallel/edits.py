"""Changes in the graph of one rank of a tensor group, operation by operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from paceline.context.segment import ReduceKind
from paceline.model.tensor_parallel.operations import look_up
from paceline.model.tensor_parallel.spec import Split, narrowed

Edit = Callable[[fx.Graph, fx.Node, int, int], fx.Node]
"""Function of a rank's graph, an operation in it, the rank's position and the size of the group. It returns the
operation that replaces the given one.
"""


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
    """Change a size argument to the size of the rank's part."""
    count = split.stretch(position, size)[1]
    given: Any = node.args[argument]
    if place is None:
        node.update_arg(argument, _part_of(graph, node, given, split.length, count))
    else:
        sizes = list(given)
        sizes[place] = _part_of(graph, node, sizes[place], split.length, count)
        node.update_arg(argument, sizes)
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
    """Narrow whole inputs to the rank's part."""
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
    """Replace an operation by a function of these arguments and of the rank's part. `Given` is an argument of the
    operation.
    """
    part = (split.dim, split.blocks, split.length, *split.stretch(position, size))
    given = [node.args[each.number] if isinstance(each, Given) else each for each in arguments]
    return _replaced(graph, node, function, (*given, *part))


class Given:
    """An argument of the replaced operation."""

    def __init__(self, number: int) -> None:
        self.number = number


class Made(int):
    """Number of an earlier step. It stands for the step's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of several operations that replace one operation, so that ranks can communicate between them."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    """Operations of the traced model, earlier steps (`Made`), and numbers."""
    shape: Sequence[int]
    """Shape of the output."""
    how: ReduceKind | Literal["enter"] | None = None
    """Reduction of the output. With "enter", each rank uses the output for its part, so the gradient is summed. None if
    there is no reduction.
    """
    split: Split | None = None
    """If given, the rank's part of this split is passed to the function too."""
    gives_part: bool = False
    """Whether the output is the rank's part of a value of that shape."""


def add_part(graph: fx.Graph, node: fx.Node, position: int, size: int, *, split: Split) -> fx.Node:
    """Append the rank's part to the arguments of a function."""
    node.args = (*node.args, split.dim, split.blocks, split.length, *split.stretch(position, size))
    return node


def drop_bias(graph: fx.Graph, node: fx.Node, position: int, size: int) -> fx.Node:
    """Remove the bias, except on the first rank, so that it is added once."""
    if not position:
        return node
    if node.target is torch.ops.aten.addmm.default:
        return _replaced(graph, node, torch.ops.aten.mm.default, node.args[1:3])
    node.args = node.args[:2]
    return node


def look_up_part(graph: fx.Graph, node: fx.Node, position: int, size: int, *, split: Split) -> fx.Node:
    """Look up the rows of an embedding that this rank stores."""
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
