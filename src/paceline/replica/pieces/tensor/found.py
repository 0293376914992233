"""What is known of a traced model before splits are followed through it, and what is found then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import fx

from paceline.replica.pieces.tensor.edits import Edit, Step
from paceline.replica.pieces.tensor.following import State, name_of
from paceline.replica.pieces.tensor.spec import Split

__all__ = ["Facts", "Region", "Role", "Stuck"]

Role = Literal["column", "row", "vocabulary", "gathered"]
"""Of a weight. Gathered: columns whose outputs are put together at once."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a traced model without its parameters."""

    nodes: Sequence[fx.Node]
    output: fx.Node
    values: Mapping[fx.Node, Any]
    """What each operation gives for some samples, without data."""
    parameters: Mapping[fx.Node, str]
    wanted: frozenset[fx.Node]
    """Values that have a gradient."""
    batch_symbols: frozenset[Any]
    """What the size of a batch is written as; nothing if it was traced as a number."""

    def weight(self, node: fx.Node) -> str | None:
        """The parameter that is a linear layer's or an embedding's weight."""
        kind = name_of(node)
        if kind not in ("linear", "embedding"):
            return None
        given: Any = node.args[1 if kind == "linear" else 0]
        return self.parameters.get(given)

    def users(self, name: str) -> list[fx.Node]:
        return [user for node, each in self.parameters.items() if each == name for user in node.users]


class Stuck(Exception):  # noqa: N818  (what is looked for by itself is then left whole)
    """A split that cannot be followed any further."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        self.node = node
        self.reason = reason


@dataclass(slots=True)
class Region:
    """What was found: how values and parameters are split, and what changes in the graph."""

    states: dict[fx.Node, State] = field(default_factory=dict)
    parameters: dict[str, Split | None] = field(default_factory=dict)
    enters: dict[tuple[fx.Node, fx.Node], None] = field(default_factory=dict)
    """Of an operation and its input: whole before, while what it gives is split."""
    gathers: dict[tuple[fx.Node, fx.Node], None] = field(default_factory=dict)
    """Of an operation and its input: split before, and needed whole."""
    at_once: dict[fx.Node, None] = field(default_factory=dict)
    """Operations whose outputs are put together for all that use them."""
    sums: dict[fx.Node, None] = field(default_factory=dict)
    """Operations that give partial sums."""
    edits: dict[fx.Node, list[Edit]] = field(default_factory=dict)
    steps: dict[fx.Node, Sequence[Step]] = field(default_factory=dict)
    """Operations that are done in several steps."""
    roles: dict[str, Role] = field(default_factory=dict)
    """Of all weights that are split."""
    refined: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Blocks and units of columns that must be split in them."""
    scatters: dict[fx.Node, Split] = field(default_factory=dict)
    """Operations that give partial sums, of which each rank has its part of the sequence then."""
    shared: dict[fx.Node, None] = field(default_factory=dict)
    """Operations that give partial sums which ranks make one of further on."""
    takes: dict[fx.Node, Split] = field(default_factory=dict)
    """Operations that all ranks do alike, and of which each has its part of the sequence then."""
    partial: dict[str, None] = field(default_factory=dict)
    """Parameters that are used for parts of the sequence: each rank has a part of their gradient."""

    @property
    def ends_split(self) -> bool:
        """Whether a value that the model gives is split by columns, and put together at its end."""
        return any(node.op == "output" and not self.is_sequence(value) for node, value in self.gathers)

    def is_sequence(self, node: fx.Node) -> bool:
        """Whether ranks have each their part of the sequence of a value."""
        state = self.states.get(node)
        return isinstance(state, Split) and state.sequence

    def update(self, other: Region) -> None:
        for each in fields(self):
            getattr(self, each.name).update(getattr(other, each.name))
