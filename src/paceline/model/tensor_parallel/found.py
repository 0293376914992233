"""Facts about a traced model before splits are propagated, and the result of the propagation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from torch import fx

from paceline.model.tensor_parallel.edits import Edit, Step
from paceline.model.tensor_parallel.following import State, name_of
from paceline.model.tensor_parallel.spec import Split

Role = Literal["column", "row", "vocabulary", "gathered"]
"""Role of a weight. Gathered: split by columns, and the outputs are gathered immediately."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a traced model, without its parameters."""

    nodes: Sequence[fx.Node]
    output: fx.Node
    values: Mapping[fx.Node, Any]
    """Output of each operation for some samples, without data."""
    parameters: Mapping[fx.Node, str]
    wanted: frozenset[fx.Node]
    """Values that need a gradient."""
    batch_symbols: frozenset[Any]
    """Symbols of the batch size. Empty if it was traced as a constant."""
    unsplit: frozenset[str] = frozenset()
    """Weights that every rank must hold whole."""

    def weight(self, node: fx.Node) -> str | None:
        """Return the parameter that is the weight of a linear layer or an embedding. None if there is none."""
        product = product_of(node)
        given: Any = product.weight if product is not None else None
        if name_of(node) == "embedding":
            given = node.args[0]
        return self.parameters.get(given)

    def users(self, name: str) -> list[fx.Node]:
        return [user for node, each in self.parameters.items() if each == name for user in node.users]


class Product(NamedTuple):
    """A linear layer: its input times a matrix, plus a bias."""

    value: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    columns_dim: int
    """Dimension of the weight that becomes the last dimension of the output."""
    rows_dim: int


def product_of(node: fx.Node) -> Product | None:
    """Return the linear layer that an operation computes; None if it computes none.

    `nn.Linear` multiplies with the transposed weight. `Conv1D` of Hugging Face's GPT-2 is an `addmm` with the weight
    as it is.
    """
    args: Any = node.args
    kind = name_of(node)
    if kind == "linear":
        return Product(args[0], args[1], args[2] if len(args) > 2 else None, columns_dim=0, rows_dim=1)
    if kind == "addmm" and not node.kwargs:
        return Product(args[1], args[2], args[0], columns_dim=1, rows_dim=0)
    return None


class Stuck(Exception):  # noqa: N818  (the search then leaves the layer whole)
    """A split that cannot be propagated further."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        self.node = node
        self.reason = reason


@dataclass(slots=True)
class Region:
    """Result of the propagation: how values and parameters are split, and the changes in the graph."""

    states: dict[fx.Node, State] = field(default_factory=dict)
    parameters: dict[str, Split | None] = field(default_factory=dict)
    enters: dict[tuple[fx.Node, fx.Node], None] = field(default_factory=dict)
    """(operation, input) with a whole input and a split output."""
    gathers: dict[tuple[fx.Node, fx.Node], None] = field(default_factory=dict)
    """(operation, input) with a split input that the operation needs in whole."""
    at_once: dict[fx.Node, None] = field(default_factory=dict)
    """Operations with outputs that are gathered once for all users."""
    sums: dict[fx.Node, None] = field(default_factory=dict)
    """Operations that output partial sums."""
    edits: dict[fx.Node, list[Edit]] = field(default_factory=dict)
    steps: dict[fx.Node, Sequence[Step]] = field(default_factory=dict)
    """Operations that are replaced by several steps."""
    roles: dict[str, Role] = field(default_factory=dict)
    """Roles of all weights that are split."""
    refined: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Blocks and units in which columns must be split, by weight."""
    scatters: dict[fx.Node, Split] = field(default_factory=dict)
    """Operations that output partial sums. They are reduce-scattered along the sequence."""
    shared: dict[fx.Node, None] = field(default_factory=dict)
    """Operations that output partial sums. These are reduced at a later operation."""
    takes: dict[fx.Node, Split] = field(default_factory=dict)
    """Operations that all ranks compute equally. Each rank then takes its part of the sequence."""
    partial: dict[str, None] = field(default_factory=dict)
    """Parameters used on parts of the sequence. Each rank has a partial sum of their gradient."""

    @property
    def ends_split(self) -> bool:
        """Whether an output of the model is split by columns, and gathered at the end."""
        return any(node.op == "output" and not self.is_sequence(value) for node, value in self.gathers)

    def is_sequence(self, node: fx.Node) -> bool:
        """Return whether a value is split by sequence."""
        state = self.states.get(node)
        return isinstance(state, Split) and state.sequence

    def update(self, other: Region) -> None:
        for each in fields(self):
            getattr(self, each.name).update(getattr(other, each.name))
