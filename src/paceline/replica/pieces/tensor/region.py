"""Follows splits through a traced model, from the columns that make them to the rows that end them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from paceline.replica.pieces.tensor.edits import (
    Edit,
    Given,
    Step,
    become,
    drop_bias,
    look_up_part,
    resize,
    take_part,
)
from paceline.replica.pieces.tensor.following import NoRule, name_of
from paceline.replica.pieces.tensor.found import Facts, Region, Role, Stuck
from paceline.replica.pieces.tensor.rules import RULES
from paceline.replica.pieces.tensor.spec import Split
from paceline.replica.pieces.tensor.views import Refine

__all__ = ["Walk", "follow", "refine"]

_TURNS = 4
"""For each weight with a role: how often it may turn out that its columns must be split otherwise."""


def follow(facts: Facts, roles: Mapping[str, Role], *, free: Callable[[str], bool] | None = None) -> Region:
    """Split the weights that have roles, and all between them.

    `free`: whether a weight may be split by rows where a split value comes to it; then nothing else may end a split.
    Raises Stuck.
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
    """Note that columns must be split otherwise."""
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
        """All, or from the first that has a role to the last that a split value comes to."""
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
        elif kind == "linear":
            self._linear(node, weight, role)
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

    def _linear(self, node: fx.Node, weight: str | None, role: Role | None) -> None:
        value: Any = node.args[0]
        split = self.split(value)
        if role in ("column", "vocabulary", "gathered"):
            self._column(node, str(weight), gathered=role == "gathered")
        elif role == "row":
            self._row(node, str(weight), split)
        elif self._free is None:
            self._end([node])
        elif weight is not None and self._free(weight) and split is not None:
            self._row(node, weight, split)
            self._region.roles[weight] = "row"
        else:
            raise NoRule("a split value comes to it")

    def _column(self, node: fx.Node, name: str, *, gathered: bool) -> None:
        self._use_whole(node, node.args[0], enters=True)  # type: ignore[arg-type]
        blocks, unit = self._refined.get(name, (1, 1))
        out, shape = self.shape(node), self.shape(node.args[1])  # type: ignore[arg-type]
        if shape[0] % (blocks * unit):
            raise NoRule(f"its {shape[0]} columns are used as {blocks} blocks of units of {unit}")
        split = Split(0, shape[0] // blocks, blocks, unit, origins=frozenset([name]))
        self._assign(name, split)
        if len(node.args) > 2 and node.args[2] is not None:
            self._assign(self._parameter(node, node.args[2]), split)
        self._region.states[node] = split.moved(len(out) - 1)
        if gathered:
            self._region.at_once[node] = None

    def _row(self, node: fx.Node, name: str, split: Split | None) -> None:
        value: Any = node.args[0]
        dims, columns = len(self.shape(value)), self.shape(node.args[1])[1]  # type: ignore[arg-type]
        if split is None:
            split = Split(dims - 1, columns, 1, 1)
            self.take(node, value, split)
        if split.dim != dims - 1:
            raise NoRule("its input is split in another dimension than the last")
        self._assign(name, split.moved(1))
        if len(node.args) > 2 and node.args[2] is not None:
            self._assign(self._parameter(node, node.args[2]), None)
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
        """A layer gives partial sums."""
        self.sum(node)

    def _parameter(self, node: fx.Node, value: Any) -> str:
        if value not in self._facts.parameters:
            raise NoRule("its bias is no parameter")
        return self._facts.parameters[value]

    def _assign(self, name: str, split: Split | None) -> None:
        known = self._region.parameters.setdefault(name, split)
        if known != split:
            raise NoRule(f"{name} is used elsewhere, where it is split in another way")

    # Where a split ends

    def _end(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            for value in node.all_input_nodes:
                if self.split(value) is not None:
                    if self._free is not None:
                        raise Stuck(node, "a split value comes to the model's end")
                    self._use_whole(node, value, enters=False)

    def _use_whole(self, node: fx.Node, value: fx.Node, *, enters: bool) -> None:
        if self.split(value) is not None:
            if self._free is not None:
                raise NoRule("a split value comes to it")
            self._region.gathers[node, value] = None
        if enters and value in self._facts.wanted:
            self._region.enters[node, value] = None

    # What rules ask

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
