"""The graph of one rank of a tensor group, with the operations at which ranks communicate.

An operation `enter` is inserted where a value enters split layers. The split layers use its output, and its gradient is
summed. A residual connection bypasses the split layers and `enter`, so its gradient is not summed. If ranks have
parts of a value on one side of a cut, the value before the cut and the value after it are different nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from paceline.context.segment import ReduceKind
from paceline.model.cutting.aliases import written_by
from paceline.model.cutting.counting import NOTHING, Count
from paceline.model.cutting.traced import Traced
from paceline.model.cutting.trial import Trial
from paceline.model.tensor_parallel.edits import Given, Made, Step, add_part, become
from paceline.model.tensor_parallel.found import Region
from paceline.model.tensor_parallel.operations import enter
from paceline.model.tensor_parallel.spec import Split, widened


class Joint(NamedTuple):
    """Reduction of a value, and of its gradient."""

    forward: ReduceKind | None
    backward: ReduceKind | None
    dim: int = 0
    """Dimension of the parts."""
    length: int = 0
    """Length of the whole value in this dimension."""


SUMMED = Joint("sum", None)
ENTERED = Joint(None, "sum")


class Built:
    """The graph with reductions inserted."""

    def __init__(self, traced: Traced, region: Region, size: int) -> None:
        self._region = region
        self._size = size
        self.edits: dict[fx.Node, Any] = {}
        self.joints: dict[fx.Node, Joint] = {}
        """Reduction of a value, directly after the operation that computes it."""
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._gathered: dict[fx.Node, fx.Node] = {}
        self._copies_entered: dict[fx.Node, fx.Node] = {}
        self._sequences: dict[tuple[fx.Node, ReduceKind], fx.Node] = {}
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
            if self._needs_sequence(node, value):
                self._gather_sequence(node, value)
            elif (node, value) in self._region.enters:
                self._enter(node, value)
            elif node.op == "output" and self._source(node, value) in self.joints:
                self._pass_on(node, value)
        if node in self._region.steps:
            self._copies[node] = self._add_steps(node, self._region.steps[node])
            return
        made = self._graph.node_copy(node, lambda value: self._input(node, value))
        self._copies[node] = made
        if node in self._region.edits:
            self.edits[made] = self._region.edits[node]
        if node in self._old.values:
            self._note_copy(node, made)
        self._join(node, made)

    def _note_copy(self, node: fx.Node, made: fx.Node) -> None:
        region, state = self._region, self._region.states.get(node)
        is_shared = (state is not None and node not in region.takes) or node in region.sums | region.shared
        count = self._old.counts[node].times(1 / self._size if is_shared else 1.0)
        is_whole = node in region.sums or node in region.scatters or node in region.takes
        parts = self._size if isinstance(state, Split) and not is_whole else 1
        self._note(made, self._old.values[node], count, parts)

    def _join(self, node: fx.Node, made: fx.Node) -> None:
        """Add the reduction of an operation's output."""
        region, state = self._region, self._region.states.get(node)
        if node in region.sums:
            self.joints[made] = SUMMED
        elif node in region.scatters or node in region.takes:
            assert isinstance(state, Split)
            how: ReduceKind = "scatter" if node in region.scatters else "take"
            self.joints[made] = Joint(how, "gather", state.dim, state.length)
            self._copies[node] = self._arrived(node, made, self._size)
        elif isinstance(state, Split) and not state.sequence and self._is_gathered(node):
            self._gather(node, state)

    def _is_gathered(self, node: fx.Node) -> bool:
        return node in self._region.at_once or any(value is node for _, value in self._region.gathers)

    # Parts of sequences

    def _needs_sequence(self, node: fx.Node, value: fx.Node) -> bool:
        return (node, value) in self._region.gathers and self._region.is_sequence(value)

    def _gather_sequence(self, node: fx.Node, value: fx.Node) -> None:
        """Gather a value that is split by sequence. Users with the same backward reduction share the result."""
        back = self._back(node, value)
        if (value, back) in self._sequences:
            return
        split = self._region.states[value]
        assert isinstance(split, Split)
        leaving = self._call(enter, self._copies[value], value, node, self._size)
        self.joints[leaving] = Joint("gather", back, split.dim, split.length)
        self._sequences[value, back] = self._arrived(value, leaving, 1)

    def _back(self, node: fx.Node, value: fx.Node) -> ReduceKind:
        """Return the backward reduction. In split layers each rank has a partial sum of the gradient. In other
        layers each rank has the whole gradient.
        """
        return "scatter" if (node, value) in self._region.enters else "take"

    def _arrived(self, value: fx.Node, leaving: fx.Node, parts: int) -> fx.Node:
        """Return a new node for a value after the cut: its size differs from the size before."""
        is_changed = any(value in written_by(user) for user in value.users)
        return self._call(torch.clone if is_changed else enter, leaving, value, leaving, parts)

    def _call(
        self, function: Callable[..., Any], source: fx.Node, value: fx.Node, where: fx.Node, parts: int
    ) -> fx.Node:
        """Add an operation that returns a value, in the layer that needs it."""
        made = self._graph.call_function(function, (source,))
        made.meta = {**value.meta, **where.meta, "val": value.meta["val"]}
        self._note(made, self._old.values[value], NOTHING, parts)
        return made

    # Steps

    def _add_steps(self, node: fx.Node, steps: Sequence[Step]) -> fx.Node:
        """Add the steps that replace an operation. The step with the most arguments has the whole cost, divided by the
        ranks.
        """
        old, made = self._old.values[node], list[fx.Node]()
        largest = max(range(len(steps)), key=lambda number: len(steps[number].arguments))
        for number, step in enumerate(steps):
            given = [self._argument(node, each, made) for each in step.arguments]
            each = self._graph.call_function(step.function, tuple(given))
            value = torch.empty(tuple(step.shape), dtype=old.dtype, device="meta")
            each.meta = {**node.meta, "val": value}
            count = self._old.counts[node].times(1 / self._size) if number == largest else NOTHING
            self._note(each, value, count, self._size if step.gives_part else 1)
            if step.split is not None:
                self.edits[each] = [partial(add_part, split=step.split)]
            if step.how is not None:
                self.joints[each] = ENTERED if step.how == "enter" else Joint(step.how, None)
            made.append(each)
        return made[-1]

    def _argument(self, node: fx.Node, each: Any, made: Sequence[fx.Node]) -> Any:
        if isinstance(each, Made):
            return made[each]
        return self._input(node, each) if isinstance(each, fx.Node) else each

    # Whole values

    def _input(self, node: fx.Node, value: fx.Node) -> fx.Node:
        if self._needs_sequence(node, value):
            return self._sequences[value, self._back(node, value)]
        source = self._source(node, value)
        passed = (node, value) in self._region.enters or (node.op == "output" and source in self.joints)
        return self._copies_entered[source] if passed else source

    def _source(self, node: fx.Node, value: fx.Node) -> fx.Node:
        whole = (node, value) in self._region.gathers or value in self._region.at_once
        return self._gathered[value] if whole else self._copies[value]

    def _enter(self, node: fx.Node, value: fx.Node) -> None:
        source = self._source(node, value)
        if source not in self._copies_entered:
            self._pass_on(node, value)
            self.joints[self._copies_entered[source]] = ENTERED

    def _pass_on(self, node: fx.Node, value: fx.Node) -> None:
        """Add an identity operation, so that there is an operation after the cut when an output is reduced."""
        source = self._source(node, value)
        self._copies_entered[source] = self._call(enter, source, value, node, 1)

    def _gather(self, node: fx.Node, split: Split) -> None:
        made = self._graph.call_function(widened, (self._copies[node],))
        made.meta = dict(node.meta)
        self._gathered[node] = made
        self._note(made, self._old.values[node], NOTHING, 1)
        self.joints[made] = SUMMED
        self.edits[made] = [partial(become, function=widened, arguments=[Given(0)], split=split)]

    def _note(self, node: fx.Node, value: Any, count: Count, parts: int) -> None:
        self.trial.values[node] = value
        self.trial.counts[node] = count
        self.trial.split[node] = parts
