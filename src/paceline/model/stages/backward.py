"""Explicit backward passes: of inputs and weights together, or of the inputs first and the weights later.

Two plain calls of `torch.autograd.grad` would traverse the graph from outputs to inputs twice. Here the first call
records the gradient that arrives at each operation with weights. The second call continues from these operations, so no
part of the graph is traversed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = list[Tensor | None]
"""Gradients; None where the outputs do not depend on the tensor."""
End = Tensor | GradientEdge
"""An output, or its gradient edge. With the edge, the output tensor itself can be freed."""


def gradients(outputs: Sequence[End], given: Sequence[Tensor], of: Sequence[Tensor]) -> Gradients:
    """Return the gradients of the leaves in `of`, given the gradients of the outputs."""
    if not outputs or not of:
        return [None] * len(of)
    return list(torch.autograd.grad([_edge_of(each) for each in outputs], of, given, allow_unused=True))


def input_gradients(
    outputs: Sequence[End], given: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Gradients, Weights]:
    """Return the gradients of the inputs, and the deferred computation of the weight gradients."""
    if not inputs or not outputs:
        return [], Weights(weights, rest=lambda: gradients(outputs, given, weights))
    graph = _Graph(outputs, inputs, weights)
    stops = graph.stops()
    # If several operations use a weight, autograd has already summed its gradients in the first call.
    counts = Counter(number for stop in stops for number in stop.weights)
    early = sorted(number for number, count in counts.items() if count > 1)
    stops = [stop.without(early) for stop in stops]
    for stop in stops:
        stop.begin(outputs, given)
    handles = [stop.node.register_prehook(stop.note) for stop in stops]
    try:
        of = [*inputs, *(weights[number] for number in early)]
        edges = [_edge_of(output) for output in outputs]
        found = torch.autograd.grad(edges, of, given, allow_unused=True, retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    known = dict(zip(early, found[len(inputs) :], strict=True))
    return list(found[: len(inputs)]), Weights(weights, stops=stops, known=known)


class Weights:
    """Deferred computation of the weight gradients of a segment, after the gradients of its inputs."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        stops: Sequence[_Stop] = (),
        known: Mapping[int, Tensor | None] | None = None,
        rest: Callable[[], Gradients] | None = None,
    ) -> None:
        self._weights = weights
        self._stops = stops
        self._known = known or {}
        self._rest = rest

    def gradients(self) -> Gradients:
        """Return the gradients of the weights. Call it once only: it frees the graph."""
        if self._rest is not None:
            return self._rest()
        found: Gradients = [self._known.get(number) for number in range(len(self._weights))]
        for stop in self._stops:
            edges = [(GradientEdge(stop.node, n), g) for n, g in stop.arrived.items()]
            if edges and stop.weights:
                sources, given = zip(*edges, strict=True)
                targets = [self._weights[number] for number in stop.weights]
                made = torch.autograd.grad(sources, targets, given, allow_unused=True)
                for number, gradient in zip(stop.weights, made, strict=True):
                    found[number] = gradient
        self._stops = ()
        return found


@dataclass(slots=True)
class _Stop:
    """A node where the second traversal starts: an operation with weights on the path to the inputs, or an output
    without such a path."""

    node: Node
    weights: tuple[int, ...]
    arrived: dict[int, Tensor]
    """Gradients of the node's outputs, by output number."""

    def without(self, numbers: Sequence[int]) -> _Stop:
        return _Stop(self.node, tuple(n for n in self.weights if n not in numbers), self.arrived)

    def begin(self, outputs: Sequence[End], given: Sequence[Tensor]) -> None:
        """Record the given gradients of outputs that do not lead to the inputs: the first traversal skips them."""
        for output, gradient in zip(outputs, given, strict=True):
            edge = _edge_of(output)
            if edge.node is self.node:
                before = self.arrived.get(edge.output_nr)
                self.arrived[edge.output_nr] = gradient if before is None else before + gradient

    def note(self, arrived: tuple[Tensor | None, ...]) -> None:
        self.arrived = {number: tensor for number, tensor in enumerate(arrived) if tensor is not None}


class _Graph:
    """The autograd graph from a segment's outputs to its inputs and weights."""

    def __init__(self, outputs: Sequence[End], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self._roots = [_edge_of(output).node for output in outputs]
        self._inputs = {get_gradient_edge(each).node for each in inputs}
        self._weights = {get_gradient_edge(each).node: number for number, each in enumerate(weights)}

    def stops(self) -> list[_Stop]:
        leads: dict[Node, bool] = {}  # whether the node leads to an input
        hanging: dict[Node, frozenset[int]] = {}  # weights below the node that are not on a path to an input
        stops: dict[Node, _Stop] = {}
        for node in self._leaves_first():
            children = [child for child, _ in node.next_functions if child is not None]
            aside = frozenset[int]().union(*(hanging[child] for child in children if not leads[child]))
            leads[node] = node in self._inputs or any(leads[child] for child in children)
            hanging[node] = aside
            if node in self._weights:
                hanging[node] = aside | {self._weights[node]}
            if leads[node] and aside:
                stops[node] = _Stop(node, tuple(sorted(aside)), {})
        for root in self._roots:
            if not leads[root] and hanging[root]:
                stops[root] = _Stop(root, tuple(sorted(hanging[root])), {})
        return list(stops.values())

    def _leaves_first(self) -> Iterator[Node]:
        """Yield every node, always after its successors."""
        seen: set[Any] = set()
        stack: list[tuple[Node, bool]] = [(root, False) for root in self._roots]
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(child, False) for child, _ in node.next_functions if child is not None]


def _edge_of(output: End) -> GradientEdge:
    return output if isinstance(output, GradientEdge) else get_gradient_edge(output)
