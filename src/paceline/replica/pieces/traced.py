"""Any other module: traced by torch.export with a batch of any size, its operations are the parts.

A value that is used behind a cut crosses it, over several cuts if need be. What the model is called with does not:
every rank can fetch it. Nor do sizes that follow from it: they are computed again where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from paceline.replica.pieces.exporting import Exported, export
from paceline.replica.pieces.layer_by_layer import trace_layers
from paceline.replica.pieces.parts import MOST_TENSORS, Arguments, Compute, Part, cannot_cross
from paceline.replica.pieces.trial import Trial, try_out

__all__ = ["Traced"]


class Traced:
    """A module as a row of operations."""

    def __init__(self, module: nn.Module, arguments: Arguments, samples: int) -> None:
        found = trace_layers(module, arguments, samples)
        if found is None:
            exported = export(module, arguments, samples)
            found = exported, try_out(exported, module, arguments, samples)
        self.begin(*found)

    def begin(self, exported: Exported, trial: Trial) -> None:
        """Make parts of a graph."""
        self.exported = exported
        self.trial = trial
        self._nodes = exported.nodes
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._in_graph = {node: n for n, node in enumerate(exported.graph_module.graph.nodes)}
        self._crossing = self._find_crossing()
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
            made = run(*(fetch() for fetch in state), *(given[place] for place in inputs), *values)
            return tree_unflatten(list(made), exported.out_spec) if is_last else list(made)

        return compute

    # What goes over each cut

    def _find_crossing(self) -> list[list[fx.Node]]:
        """Of each place, the values that are made before it and used behind it, in the order in which they are made."""
        last_use = {node: self._last_use(node) for node in self._nodes}
        crossing: list[list[fx.Node]] = [[]]
        alive: list[fx.Node] = []
        for place, node in enumerate(self._nodes):
            alive = [each for each in (*alive, node) if last_use[each] > place]
            crossing.append(alive)
        crossing[-1] = []
        return crossing

    def _last_use(self, node: fx.Node) -> int:
        """The place of the last operation that needs a value, by way of sizes or not."""
        last = -1
        for user in node.users:
            if user.op == "output":
                last = max(last, len(self._nodes))
            elif user in self._place:
                last = max(last, self._place[user])
        return last

    def _obstacle(self, place: int) -> str:
        """Why there can be no cut after this place."""
        if place + 1 == len(self._nodes):
            return "it is the last operation"
        crossing = self._crossing[place + 1]
        if not 0 < len(crossing) <= MOST_TENSORS:
            return f"{len(crossing)} values would cross it, and it must be 1 to {MOST_TENSORS}"
        for node in crossing:
            if reason := cannot_cross(node.meta.get("val")):
                return f"{self.exported.layer_of(node)} gives {reason}"
            for user in node.users:
                if self._place.get(user, -1) > place and self.exported.mutates(user, node):
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
                crossing=tuple(trial.nbytes(each) for each in self._crossing[place + 1]),
                obstacle=self._obstacle(place),
                parameters=tuple(trial.parameters[each] for each in used if each in trial.parameters),
                buffers=tuple(trial.buffers[each] for each in used if each in trial.buffers),
            )
            parts.append(part)
        return parts

    # Graphs of segments

    def _needed(self, start: int, stop: int) -> list[fx.Node]:
        """Everything that operations `start` to `stop` refer to, directly or by way of sizes."""
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
        """The parameters, buffers and constants that these operations use."""
        return [node for node in self._needed(start, stop) if node in self.exported.state]

    def _inputs_of(self, start: int, stop: int) -> list[fx.Node]:
        return [node for node in self._needed(start, stop) if node in self.exported.inputs]

    def _graph(self, start: int, stop: int) -> fx.Graph:
        """The operations `start` to `stop` as a graph: of state, of inputs, and of what crosses the cut before."""
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
            graph.output(tuple(copies[node] for node in self._crossing[stop]))
        return graph

    def _copy(self, graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
        """An operation in the graph of a segment."""
        return graph.node_copy(node, lambda each: copies[each])

    def _in_order(self, nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
        return iter(sorted(set(nodes), key=self._in_graph.__getitem__))
