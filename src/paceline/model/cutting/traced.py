"""Parts of a module that is not a Sequential: its operations, traced by torch.export for batches of any size.

A value that is used after a cut crosses the cut. It may cross several cuts. The model's arguments do not cross:
every rank can load them. Sizes that depend on the arguments do not cross either: they are computed again where they
are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from paceline.model.cutting.aliases import changes, roots_of
from paceline.model.cutting.exporting import Exported, export
from paceline.model.cutting.layer_by_layer import trace_layers
from paceline.model.cutting.parts import MOST_TENSORS, Arguments, Compute, Part, cannot_cross
from paceline.model.cutting.trial import Trial, try_out


class Traced:
    """A module as a sequence of operations."""

    def __init__(
        self, module: nn.Module, arguments: Arguments, samples: int, *, one_size: bool = False
    ) -> None:
        """With `one_size`, all batches have this number of samples."""
        found = trace_layers(module, arguments, samples)
        if found is None:
            exported = export(module, arguments, samples, one_size=one_size)
            found = exported, try_out(exported, module, arguments, samples)
        self.begin(*found)

    def begin(self, exported: Exported, trial: Trial) -> None:
        """Make the parts of a graph."""
        self.exported = exported
        self.trial = trial
        self._nodes = exported.nodes
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._in_graph = {node: n for n, node in enumerate(exported.graph_module.graph.nodes)}
        self._crossing = self._find_crossing()
        self._roots = roots_of(self._nodes)
        self._changes = changes(self._nodes, self._roots)
        self._in_vmap = _in_vmap(self._nodes)
        self.parts = self._make_parts()

    def needs_arguments(self, start: int, stop: int) -> bool:
        return bool(self._inputs_of(start, stop))

    def compute(self, module: nn.Module, start: int, stop: int) -> Compute:
        exported, is_last = self.exported, stop == len(self._nodes)
        state = [exported.fetcher(module, node) for node in self._state_of(start, stop)]
        inputs = [exported.inputs[node] for node in self._inputs_of(start, stop)]
        run = fx.GraphModule(nn.Module(), self._graph(start, stop)).forward

        def compute(arguments: Arguments | None, values: Sequence[Tensor]) -> Any:
            given = tree_leaves(tuple(arguments)) if arguments is not None else []
            if arguments is not None:
                exported.check_sizes(given)
            made = run(*(fetch() for fetch in state), *(given[place] for place in inputs), *values)
            return tree_unflatten(list(made), exported.out_spec) if is_last else list(made)

        return compute

    # Values that cross each cut

    def _find_crossing(self) -> list[list[fx.Node]]:
        """Return, for each place, the values computed before it and used after it, in the order of computation."""
        last_use = {node: self._last_use(node) for node in self._nodes}
        crossing: list[list[fx.Node]] = [[]]
        alive: list[fx.Node] = []
        for place, node in enumerate(self._nodes):
            alive = [each for each in (*alive, node) if last_use[each] > place]
            crossing.append(alive)
        crossing[-1] = []
        return crossing

    def _last_use(self, node: fx.Node) -> int:
        """Return the place of the last operation that uses a value, directly or through sizes."""
        last = -1
        for user in node.users:
            if user.op == "output":
                last = max(last, len(self._nodes))
            elif user in self._place:
                last = max(last, self._place[user])
        return last

    def _obstacle(self, place: int) -> str:
        """Return the reason why no cut is possible after this place. Empty if a cut is possible."""
        if place + 1 == len(self._nodes):
            return "it is the last operation"
        if place in self._in_vmap:
            return f"{self.exported.layer_of(self._nodes[place])} is within torch.vmap"
        crossing = self._crossing[place + 1]
        if not 0 < len(crossing) <= MOST_TENSORS:
            return f"{len(crossing)} values would cross it, but the limits are 1 and {MOST_TENSORS}"
        for node in crossing:
            if reason := cannot_cross(node.meta.get("val")):
                return f"{self.exported.layer_of(node)} gives {reason}"
            for root in self._roots[node]:
                user = self._changes.get(root)
                if user is not None and self._place.get(user, -1) > place:
                    return f"{self.exported.layer_of(user)} changes a value in place that would cross it"
        return ""

    # Parts

    def _make_parts(self) -> list[Part]:
        trial, parts = self.trial, []
        for place, node in enumerate(self._nodes):
            used = self._state_of(place, place + 1)
            part = Part(
                name=self.exported.layer_of(node),
                operations=trial.counts[node].operations / trial.samples,
                flops=trial.counts[node].flops / trial.samples,
                moved_bytes=trial.counts[node].moved_bytes / trial.samples,
                launches=trial.counts[node].launches,
                weight_bytes=trial.counts[node].weight_bytes,
                crossing=tuple(trial.nbytes(each) for each in self._crossing[place + 1]),
                obstacle=self._obstacle(place),
                parameters=tuple(trial.parameters[each] for each in used if each in trial.parameters),
                buffers=tuple(trial.buffers[each] for each in used if each in trial.buffers),
            )
            parts.append(part)
        return parts

    # Graphs of segments

    def _needed(self, start: int, stop: int) -> list[fx.Node]:
        """Return everything that operations `start` to `stop` refer to, directly or through sizes."""
        found: dict[fx.Node, None] = {}
        waiting = [node for place in range(start, stop) for node in self._nodes[place].all_input_nodes]
        if stop == len(self._nodes):
            waiting += self.exported.output.all_input_nodes
        while waiting:
            node = waiting.pop()
            if node not in found:
                found[node] = None
                if node in self.exported.sizes:
                    waiting += node.all_input_nodes
        return sorted(found, key=self._in_graph.__getitem__)

    def _state_of(self, start: int, stop: int) -> list[fx.Node]:
        """Return the parameters, buffers and constants that these operations use."""
        return [node for node in self._needed(start, stop) if node in self.exported.state]

    def _inputs_of(self, start: int, stop: int) -> list[fx.Node]:
        return [node for node in self._needed(start, stop) if node in self.exported.inputs]

    def _graph(self, start: int, stop: int) -> fx.Graph:
        """Return operations `start` to `stop` as a graph. Its inputs are state, arguments, and the values from the cut
        before.
        """
        graph, copies = fx.Graph(), {}
        taken = [*self._state_of(start, stop), *self._inputs_of(start, stop), *self._crossing[start]]
        for node in taken:
            copies[node] = graph.placeholder(node.name)
        sizes = [node for node in self._needed(start, stop) if node in self.exported.sizes]
        for node in self._in_order([*sizes, *self._nodes[start:stop]]):
            copies[node] = self._copy(graph, node, copies)
        if stop == len(self._nodes):
            graph.output(fx.map_arg(self.exported.output.args[0], lambda each: copies[each]))
        else:
            made = frozenset(self._nodes[start:stop])
            crossing = (
                (copies[node], node in made and self._is_view_of_state(node)) for node in self._crossing[stop]
            )
            graph.output(tuple(_clone(graph, copy) if is_view else copy for copy, is_view in crossing))
        return graph

    def _is_view_of_state(self, node: fx.Node) -> bool:
        """Return whether a value shares memory with a parameter or buffer, which may be freed or changed after the
        segment."""
        return not self._roots[node].isdisjoint(self.exported.state)

    def _copy(self, graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
        """Copy an operation into the graph of a segment."""
        return graph.node_copy(node, lambda each: copies[each])

    def _in_order(self, nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
        return iter(sorted(set(nodes), key=self._in_graph.__getitem__))


def _clone(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return graph.call_function(torch.ops.aten.clone.default, (node,))


def _in_vmap(nodes: Sequence[fx.Node]) -> frozenset[int]:
    """Return the places of operations after which a call of torch.vmap is under way."""
    found, depth = set[int](), 0
    for place, node in enumerate(nodes):
        name = getattr(node.target, "__name__", "")
        depth += ("increment_nesting" in name) - ("decrement_nesting" in name)
        if depth:
            found.add(place)
    return frozenset(found)
