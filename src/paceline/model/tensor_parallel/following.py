"""The interface between the rules of operations and the walk that propagates splits through a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import fx

from paceline.model.tensor_parallel.edits import Step
from paceline.model.tensor_parallel.spec import Split

State = Split | list[Split] | None


class NoRule(Exception):  # noqa: N818  (the walk reports to the user where the split ended)
    """An operation that cannot be computed on parts."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason


class Follower(Protocol):
    """A walk that propagates splits through a graph."""

    def split(self, node: Any) -> Split | None:
        """Return how a value is split. None if it is whole, or not a tensor."""
        ...

    def shape(self, node: fx.Node) -> Sequence[int]:
        """Return the shape of the whole value."""
        ...

    def order(self, node: fx.Node) -> list[int]:
        """Return the dimensions of the whole value in memory order, the largest stride first."""
        ...

    def take(self, node: fx.Node, value: fx.Node, split: Split) -> None:
        """Request a rank's part of a whole value for a split operation; the whole value if its size is 1 in the split
        dimension. A negative split dimension requests the whole value.
        """
        ...

    def resize(self, node: fx.Node, argument: int, place: int | None, split: Split) -> None:
        """Change a size argument to the size of a rank's part. `place` is the index in a list of sizes. None if the
        argument is a single size.
        """
        ...

    def become(
        self, node: fx.Node, function: Callable[..., Any], arguments: Sequence[Any], split: Split
    ) -> None:
        """Replace an operation by a function of these arguments and of the rank's part."""
        ...

    def part(self, node: fx.Node, steps: Sequence[Step]) -> None:
        """Replace an operation by steps between which ranks communicate. The last step computes the output."""
        ...

    def sum(self, node: fx.Node) -> None:
        """Mark the output of an operation as a partial sum."""
        ...


def name_of(node: fx.Node) -> str:
    """Return the name of an operation. An in-place variant, which ends in _, has the same name."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    return str(schema.name).removeprefix("aten::").removesuffix("_")


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def dim_of(node: fx.Node, place: int, name: str, dims: int, default: int = 0) -> int:
    return int(argument(node, place, name, default)) % dims


def first_of(look: Follower, node: fx.Node) -> tuple[fx.Node, Split]:
    """Return the first input and its split. Raise NoRule if this input is not split."""
    value: Any = node.args[0]
    split = look.split(value)
    if split is None:
        raise NoRule
    return value, split


Rule = Callable[[Follower, fx.Node], State]
"""Function of an operation with at least one split input. It returns the split of the output, or a list for several
outputs. None if the output is whole. It requests narrowed inputs and changed sizes from the follower.
"""
