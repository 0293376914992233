"""Propagation of splits through a traced model, from layers split by columns to layers split by rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from paceline.model.tensor_parallel.edits import (
    Edit,
    Given,
    Step,
    become,
    drop_bias,
    look_up_part,
    resize,
    take_part,
)
from paceline.model.tensor_parallel.following import NoRule, name_of
from paceline.model.tensor_parallel.found import Facts, Product, Region, Role, Stuck, product_of
from paceline.model.tensor_parallel.rules import RULES
from paceline.model.tensor_parallel.spec import Split
from paceline.model.tensor_parallel.views import Refine

_TURNS = 4
"""Maximum restarts for each weight with a role. A restart follows if its columns must be split in another way."""


def follow(facts: Facts, roles: Mapping[str, Role], *, free: Callable[[str], bool] | None = None) -> Region:
    """Split the weights with roles, and all operations between them.

    `free` returns whether a weight may be split by rows if its input is split. If given, a split must end in such
    weights only. Raise Stuck if this is impossible.
    """
    refined: dict[str, tuple[int, int]] = {}
    for _ in range(_TURNS * (2 + len(roles))):
        try:
            region = Walk(facts, roles, refined, free).run()
            region.refined = refined
            return region
        except Refine as wish:
            refine(refined, wish)
    raise Stuck(facts.output, "its columns cannot be split so that all uses of them fit")


def refine(refined: dict[str, tuple[int, int]], wish: Refine) -> None:
    """Record that columns must be split in another way."""
    for name in wish.origins:
        blocks = refined.get(name, (1, 1))[0]
        refined[name] = (wish.blocks, 1) if wish.blocks > 1 else (blocks, wish.unit)


class Walk:
    """One walk through the graph."""

    def __init__(
        self,
        facts: Facts,
        roles: Mapping[str, Role],
        refined: Mapping[str, tuple[int, int]],
        free: Callable[[str], bool] | None,
    ) -> None:
        self._facts = facts
        self._roles = roles
        self._refined = refined
        self._free = free
        self._region = Region(roles=dict(roles))

    def run(self) -> Region:
        for node in self._nodes():
            try:
                self._visit(node)
            except NoRule as error:
                raise Stuck(node, error.reason) from error
        self._end([self._facts.output])
        return self._region

    def _nodes(self) -> Iterable[fx.Node]:
        """Yield the operations with a role or a split input, in forward order."""
        waiting: set[fx.Node] = set()
        for node in self._facts.nodes:
            name = self._facts.weight(node)
            if node in waiting or (name is not None and name in self._roles):
                yield node
                if self._region.states.get(node) is not None and node not in self._region.at_once:
                    waiting.update(node.users)

    def _visit(self, node: fx.Node) -> None:
        kind, weight = name_of(node), self._facts.weight(node)
        role = None if weight is None else self._roles.get(weight)
        if kind == "embedding" and role is not None:
            self._look_up(node, str(weight))
        elif (product := product_of(node)) is not None:
            self._linear(node, product, weight, role)
        elif node.target is operator.getitem:
            given: Any = self._region.states[node.args[0]]  # type: ignore[index]
            if not isinstance(given, list):
                raise NoRule
            self._region.states[node] = given[node.args[1]]  # type: ignore[index]
        elif kind in RULES:
            self._region.states[node] = RULES[kind](self, node)
        else:
            raise NoRule

    # Layers

    def _linear(self, node: fx.Node, product: Product, weight: str | None, role: Role | None) -> None:
        split = self.split(product.value)
        if role in ("column", "vocabulary", "gathered"):
            self._column(node, product, str(weight), gathered=role == "gathered")
        elif role == "row":
            self._row(node, product, str(weight), split)
        elif self._free is None:
            self._end([node])
        elif weight is not None and self._free(weight) and split is not None:
            self._row(node, product, weight, split)
            self._region.roles[weight] = "row"
        else:
            raise NoRule("its input is split")

    def _column(self, node: fx.Node, product: Product, name: str, *, gathered: bool) -> None:
        self._use_whole(node, product.value, enters=True)
        blocks, unit = self._refined.get(name, (1, 1))
        columns = self.shape(product.weight)[product.columns_dim]
        if columns % (blocks * unit):
            raise NoRule(f"its {columns} columns cannot be {blocks} blocks of whole units of {unit} columns")
        split = Split(product.columns_dim, columns // blocks, blocks, unit, origins=frozenset([name]))
        self._assign(name, split)
        if product.bias is not None:
            self._assign(self._parameter(node, product.bias), split.moved(0))
        self._region.states[node] = split.moved(len(self.shape(node)) - 1)
        if gathered:
            self._region.at_once[node] = None

    def _row(self, node: fx.Node, product: Product, name: str, split: Split | None) -> None:
        value = product.value
        dims, rows = len(self.shape(value)), self.shape(product.weight)[product.rows_dim]
        if split is None:
            split = Split(dims - 1, rows, 1, 1)
            self.take(node, value, split)
        if split.dim != dims - 1:
            raise NoRule("its input is split in another dimension than the last")
        self._assign(name, split.moved(product.rows_dim))
        if product.bias is not None:
            self._assign(self._parameter(node, product.bias), None)
            self._edit(node, drop_bias)
        self._sum_up(node)

    def _look_up(self, node: fx.Node, name: str) -> None:
        if any(node.args[3:]):
            raise NoRule("it scales its gradient by frequency, or has a sparse one")
        split = Split(0, self.shape(node.args[0])[0])  # type: ignore[arg-type]
        self._assign(name, split)
        self._edit(node, partial(look_up_part, split=split))
        self._sum_up(node)

    def _sum_up(self, node: fx.Node) -> None:
        """Mark the output of a layer as a partial sum."""
        self.sum(node)

    def _parameter(self, node: fx.Node, value: Any) -> str:
        if value not in self._facts.parameters:
            raise NoRule("its bias is not a parameter")
        return self._facts.parameters[value]

    def _assign(self, name: str, split: Split | None) -> None:
        known = self._region.parameters.setdefault(name, split)
        if known != split:
            raise NoRule(f"{name} is used elsewhere, where it is split in another way")

    # Ends of splits

    def _end(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            for value in node.all_input_nodes:
                if self.split(value) is not None:
                    if self._free is not None:
                        raise Stuck(node, "a model output is split")
                    self._use_whole(node, value, enters=False)

    def _use_whole(self, node: fx.Node, value: fx.Node, *, enters: bool) -> None:
        if self.split(value) is not None:
            if self._free is not None:
                raise NoRule("its input is split")
            self._region.gathers[node, value] = None
        if enters and value in self._facts.wanted:
            self._region.enters[node, value] = None

    # Interface for rules

    def split(self, node: Any) -> Split | None:
        if not isinstance(node, fx.Node) or node in self._region.at_once:
            return None
        state = self._region.states.get(node)
        if isinstance(state, list):
            raise NoRule("it takes a list")
        return state

    def shape(self, node: fx.Node) -> Sequence[int]:
        value = self._facts.values[node]
        if not isinstance(value, torch.Tensor):
            raise NoRule
        return value.shape

    def order(self, node: fx.Node) -> list[int]:
        value = self._facts.values[node]
        return sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))

    def take(self, node: fx.Node, value: fx.Node, split: Split) -> None:
        if value in self._facts.parameters and value in self._facts.wanted:
            raise NoRule(f"its parameter {self._facts.parameters[value]} is not split")
        if value in self._facts.wanted:
            self._region.enters[node, value] = None
        self._narrow(node, value, split)

    def _narrow(self, node: fx.Node, value: fx.Node, split: Split) -> None:
        if split.dim >= 0 and self.shape(value)[split.dim] > 1:
            places = [n for n, each in enumerate(node.args) if each is value]
            self._edit(node, partial(take_part, places=places, split=split))

    def resize(self, node: fx.Node, argument: int, place: int | None, split: Split) -> None:
        self._edit(node, partial(resize, argument=argument, place=place, split=split))

    def become(
        self, node: fx.Node, function: Callable[..., Any], arguments: Sequence[Any], split: Split
    ) -> None:
        own = [Given(node.args.index(each)) if isinstance(each, fx.Node) else each for each in arguments]
        self._edit(node, partial(become, function=function, arguments=own, split=split))

    def part(self, node: fx.Node, steps: Sequence[Step]) -> None:
        self._region.steps[node] = steps

    def sum(self, node: fx.Node) -> None:
        self._region.sums[node] = None

    def _edit(self, node: fx.Node, edit: Edit) -> None:
        self._region.edits.setdefault(node, []).append(edit)
