"""What a rule may ask of whoever follows a split through a graph, and what rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import fx

from paceline.replica.pieces.tensor.edits import Step
from paceline.replica.pieces.tensor.spec import Split

__all__ = ["Follower", "NoRule", "Rule", "State", "argument", "dim_of", "first_of", "name_of"]

State = Split | list[Split] | None


class NoRule(Exception):  # noqa: N818  (who follows a split tells the user where it ended)
    """An operation that cannot be done on parts."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason


class Follower(Protocol):
    """Who follows splits through a graph."""

    def split(self, node: Any) -> Split | None:
        """How a value is split. None: it is whole, or no value."""
        ...

    def shape(self, node: fx.Node) -> Sequence[int]:
        """Of the whole value."""
        ...

    def order(self, node: fx.Node) -> list[int]:
        """Of the dimensions of the whole value in memory, the widest stride first."""
        ...

    def take(self, node: fx.Node, value: fx.Node, split: Split) -> None:
        """An operation that is split needs its part of a whole value; of what is 1 wide there, all. A split dimension
        below 0: it needs all."""
        ...

    def resize(self, node: fx.Node, argument: int, place: int | None, split: Split) -> None:
        """A size among an operation's arguments, or at a place in a list that is one, is that of a rank's part."""
        ...

    def become(
        self, node: fx.Node, function: Callable[..., Any], arguments: Sequence[Any], split: Split
    ) -> None:
        """An operation is replaced by a function of these arguments and of the rank's part."""
        ...

    def part(self, node: fx.Node, steps: Sequence[Step]) -> None:
        """An operation is done in steps, between which ranks talk. The last gives what it gives."""
        ...

    def sum(self, node: fx.Node) -> None:
        """What an operation gives is a partial sum."""
        ...


def name_of(node: fx.Node) -> str:
    """Of an operation: that of its changing twin, which ends in _, is the same."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    return str(schema.name).removeprefix("aten::").removesuffix("_")


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def dim_of(node: fx.Node, place: int, name: str, dims: int, default: int = 0) -> int:
    return int(argument(node, place, name, default)) % dims


def first_of(look: Follower, node: fx.Node) -> tuple[fx.Node, Split]:
    """The input, which must be the one that is split."""
    value: Any = node.args[0]
    split = look.split(value)
    if split is None:
        raise NoRule
    return value, split


Rule = Callable[[Follower, fx.Node], State]
"""Given an operation of which at least one input is split: how the output is, a list if it gives several. None: it is
whole. It tells the follower which inputs must be narrowed and which sizes change."""
