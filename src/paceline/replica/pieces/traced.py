"""Any other module: traced by torch.export with a batch of any size, its operations are the parts.

A value that is used behind a cut crosses it, over several cuts if need be. What the model is called with does not:
every rank can fetch it. Nor do sizes that follow from it: they are computed again where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_unflatten

from paceline.replica.pieces.counting import Count, attention_flops, counted, nbytes_of
from paceline.replica.pieces.exporting import export
from paceline.replica.pieces.parts import MOST_TENSORS, Arguments, Compute, Part, cannot_cross

__all__ = ["Traced"]


class Traced:
    """A module as a row of operations."""

    def __init__(self, module: nn.Module, arguments: Arguments, samples: int) -> None:
        self._exported = export(module, arguments, samples)
        self._nodes = self._exported.nodes
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._crossing = self._find_crossing()
        self.parts = self._make_parts(module, arguments, samples)

    def needs_arguments(self, start: int, stop: int) -> bool:
        return bool(self._inputs_of(start, stop))

    def compute(self, module: nn.Module, start: int, stop: int) -> Compute:
        exported, is_last = self._exported, stop == len(self._nodes)
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
                return f"{self._exported.layer_of(node)} gives {reason}"
            for user in node.users:
                if self._place.get(user, -1) > place and self._exported.mutates(user, node):
                    return f"{self._exported.layer_of(user)} changes a value in place that would cross it"
        return ""

    # Parts

    def _make_parts(self, module: nn.Module, arguments: Arguments, samples: int) -> list[Part]:
        values, counts = self._try(module, arguments)
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        buffers = {id(buffer): name for name, buffer in module.named_buffers()}
        parts = []
        for place, node in enumerate(self._nodes):
            used = [self._exported.fetcher(module, each)() for each in self._state_of(place, place + 1)]
            part = Part(
                name=self._exported.layer_of(node),
                operations=counts[node].operations / samples,
                flops=counts[node].flops / samples,
                moved_bytes=counts[node].moved_bytes / samples,
                crossing=tuple(nbytes_of(values[each]) // samples for each in self._crossing[place + 1]),
                obstacle=self._obstacle(place),
                parameters=tuple(names[id(each)] for each in used if id(each) in names),
                buffers=tuple(buffers[id(each)] for each in used if id(each) in buffers),
            )
            parts.append(part)
        return parts

    def _try(
        self, module: nn.Module, arguments: Arguments
    ) -> tuple[dict[fx.Node, Any], dict[fx.Node, Count]]:
        """Each operation's values, without data, and what it costs."""
        exported = self._exported
        given = tree_leaves(tuple(arguments))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            fakes: list[Any] = []
            for node in exported.placeholders:
                value = (
                    given[exported.inputs[node]]
                    if node in exported.inputs
                    else exported.fetcher(module, node)()
                )
                fakes.append(mode.from_tensor(value.detach()) if isinstance(value, Tensor) else value)
            counting = _Counting(exported.graph_module)
            counting.run(*fakes)
        return counting.values, counting.counts

    # Graphs of segments

    def _needed(self, start: int, stop: int) -> list[fx.Node]:
        """Everything that operations `start` to `stop` refer to, directly or by way of sizes."""
        found: dict[fx.Node, None] = {}
        waiting = [node for place in range(start, stop) for node in self._nodes[place].all_input_nodes]
        if stop == len(self._nodes):
            waiting += self._exported.output.all_input_nodes
        while waiting:
            node = waiting.pop()
            if node not in found:
                found[node] = None
                if node in self._exported.sizes:
                    waiting += node.all_input_nodes
        return [node for node in self._exported.graph_module.graph.nodes if node in found]

    def _state_of(self, start: int, stop: int) -> list[fx.Node]:
        """The parameters, buffers and constants that these operations use."""
        return [node for node in self._needed(start, stop) if node in self._exported.state]

    def _inputs_of(self, start: int, stop: int) -> list[fx.Node]:
        return [node for node in self._needed(start, stop) if node in self._exported.inputs]

    def _graph(self, start: int, stop: int) -> fx.Graph:
        """The operations `start` to `stop` as a graph: of state, of inputs, and of what crosses the cut before."""
        graph, copies = fx.Graph(), {}
        taken = [*self._state_of(start, stop), *self._inputs_of(start, stop), *self._crossing[start]]
        for node in taken:
            copies[node] = graph.placeholder(node.name)
        sizes = [node for node in self._needed(start, stop) if node in self._exported.sizes]
        for node in self._in_order([*sizes, *self._nodes[start:stop]]):
            copies[node] = graph.node_copy(node, lambda each: copies[each])
        if stop == len(self._nodes):
            graph.output(fx.map_arg(self._exported.output.args[0], lambda each: copies[each]))
        else:
            graph.output(tuple(copies[node] for node in self._crossing[stop]))
        return graph

    def _in_order(self, nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
        wanted = set(nodes)
        return (node for node in self._exported.graph_module.graph.nodes if node in wanted)


class _Counting(fx.Interpreter):
    """Runs a graph and counts each operation."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}
        self.counts: dict[fx.Node, Count] = {}

    def run_node(self, node: fx.Node) -> Any:
        made, count = counted(lambda: super(_Counting, self).run_node(node))
        if node.target is torch.ops.aten.scaled_dot_product_attention.default:
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            moved = nbytes_of((args, kwargs, made))
            count = Count(count.operations, attention_flops(*args, **kwargs), moved)
        self.values[node], self.counts[node] = made, count
        return made
