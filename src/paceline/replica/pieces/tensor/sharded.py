"""A traced model of which each rank of a tensor group computes its part.

Where values enter split layers stands an operation of its own, `enter`: what split layers see of a value, whose
gradient is summed. So a residual, which goes around them, is another value, and its gradient is not.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, fx

from paceline.errors import ConfigurationError
from paceline.replica.pieces.counting import NOTHING, Count
from paceline.replica.pieces.tensor.edits import Given, become
from paceline.replica.pieces.tensor.operations import enter
from paceline.replica.pieces.tensor.planning import find
from paceline.replica.pieces.tensor.region import Facts, Region, Role
from paceline.replica.pieces.tensor.spec import Shares, Split, widened
from paceline.replica.pieces.traced import Traced
from paceline.replica.pieces.trial import Trial

__all__ = ["Sharded"]


class Sharded(Traced):
    """Its parts are the operations of one rank; `at` says of which."""

    def __init__(self, traced: Traced, roles: Mapping[str, Role], size: int) -> None:
        self._position = 0
        region = find(_facts(traced), roles, size)
        self.shares = Shares(size, region.parameters)
        self.whole_operations = sum(part.operations for part in traced.parts)
        built = _Built(traced, region, size)
        self._edits, self._entered, self._summed = built.edits, built.entered, built.summed
        self._begin(built.exported, built.trial)
        self.forced = self._forced()
        """Where it must be cut: after each value that is summed, and before each that is entered."""

    def at(self, position: int) -> Sharded:
        """The same for another rank of the group."""
        other = copy.copy(self)
        other._position = position
        return other

    def _forced(self) -> tuple[int, ...]:
        places = []
        for place, node in enumerate(self._nodes[:-1]):
            if node in self._summed or (
                node in self._entered and self._nodes[place + 1] not in self._entered
            ):
                self._check_cut(place)
                places.append(place + 1)
        return tuple(places)

    def _check_cut(self, place: int) -> None:
        if self.parts[place].obstacle:
            bound = f"must be one that can be cut after {self.parts[place].name}, where ranks sum"
            remedy = "leave that layer out of the plan"
            raise ConfigurationError("model", bound, self.parts[place].obstacle, remedy)

    def sums(self, place: int) -> tuple[int, ...]:
        """Which of the values that cross the cut at a place are partial sums: those that are made right before it."""
        crossing = self._crossing[place]
        return tuple(
            number
            for number, node in enumerate(crossing)
            if node in self._summed and self._place[node] == place - 1
        )

    def gradient_sums(self, before: int, place: int) -> tuple[int, ...]:
        """Which of their gradients are: those of the values that are entered right before it, behind the cut before."""
        first = place
        while first > before and self._nodes[first - 1] in self._entered:
            first -= 1
        return tuple(
            number
            for number, node in enumerate(self._crossing[place])
            if node in self._entered and first <= self._place[node]
        )

    def _copy(self, graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
        made = super()._copy(graph, node, copies)
        for edit in self._edits.get(node, ()):
            made = edit(graph, made, self._position, self.shares.size)
        return made


def _facts(traced: Traced) -> Facts:
    trial, exported = traced.trial, traced.exported
    wanted: set[fx.Node] = {node for node, name in trial.parameters.items() if name in trial.trainable}
    for node in exported.nodes:
        value = trial.values[node]
        learns = not isinstance(value, Tensor) or value.is_floating_point()
        if learns and any(each in wanted for each in node.all_input_nodes):
            wanted.add(node)
    return Facts(exported.nodes, exported.output, trial.values, trial.parameters, frozenset(wanted))


class _Built:
    """The graph with what is entered and what is put together."""

    def __init__(self, traced: Traced, region: Region, size: int) -> None:
        self._region = region
        self._size = size
        self.edits: dict[fx.Node, Any] = {}
        self.entered: set[fx.Node] = set()
        self.summed: set[fx.Node] = set()
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._gathered: dict[fx.Node, fx.Node] = {}
        self._copies_entered: dict[fx.Node, fx.Node] = {}
        self._old = traced.trial
        self.trial = Trial(traced.trial.samples, trainable=traced.trial.trainable)
        for node in traced.exported.graph_module.graph.nodes:
            self._add(node)
        self.exported = traced.exported.rebuilt(self._graph, self._copies)
        old = traced.trial
        self.trial.parameters.update({self._copies[n]: name for n, name in old.parameters.items()})
        self.trial.buffers.update({self._copies[n]: name for n, name in old.buffers.items()})

    def _add(self, node: fx.Node) -> None:
        for value in node.all_input_nodes:
            if (node, value) in self._region.enters:
                self._enter(node, value)
            elif node.op == "output" and self._source(node, value) in self.summed:
                self._pass_on(node, value)
        made = self._graph.node_copy(node, lambda value: self._input(node, value))
        self._copies[node] = made
        state = self._region.states.get(node)
        share = 1 / self._size if state is not None or node in self._region.sums else 1.0
        if node in self._old.values:
            part = isinstance(state, Split) and node not in self._region.sums
            count = self._old.counts[node].times(share)
            self._note(made, self._old.values[node], count, self._size if part else 1)
        if node in self._region.edits:
            self.edits[made] = self._region.edits[node]
        if node in self._region.sums:
            self.summed.add(made)
        if node in self._region.at_once or any(v is node for _, v in self._region.gathers):
            assert isinstance(state, Split)
            self._gather(node, state)

    def _input(self, node: fx.Node, value: fx.Node) -> fx.Node:
        source = self._source(node, value)
        passed = (node, value) in self._region.enters or (node.op == "output" and source in self.summed)
        return self._copies_entered[source] if passed else source

    def _source(self, node: fx.Node, value: fx.Node) -> fx.Node:
        whole = (node, value) in self._region.gathers or value in self._region.at_once
        return self._gathered[value] if whole else self._copies[value]

    def _enter(self, node: fx.Node, value: fx.Node) -> None:
        source = self._source(node, value)
        if source not in self._copies_entered:
            self._pass_on(node, value)
            self.entered.add(self._copies_entered[source])

    def _pass_on(self, node: fx.Node, value: fx.Node) -> None:
        """The value itself, by another name: of an output, so that something is behind its sum."""
        source = self._source(node, value)
        made = self._graph.call_function(enter, (source,))
        made.meta = {**value.meta, **node.meta, "val": value.meta["val"]}
        self._copies_entered[source] = made
        self._note(made, self._old.values[value], NOTHING, 1)

    def _gather(self, node: fx.Node, split: Split) -> None:
        made = self._graph.call_function(widened, (self._copies[node],))
        made.meta = dict(node.meta)
        self._gathered[node] = made
        self._note(made, self._old.values[node], NOTHING, 1)
        self.summed.add(made)
        self.edits[made] = [partial(become, function=widened, arguments=[Given(0)], split=split)]

    def _note(self, node: fx.Node, value: Any, count: Count, parts: int) -> None:
        self.trial.values[node] = value
        self.trial.counts[node] = count
        self.trial.split[node] = parts
