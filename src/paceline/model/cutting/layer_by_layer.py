"""Tracing of a shape-only Sequential layer by layer. Equal layers are traced once, and their operations are copied.

Tracing a hundred equal blocks takes the time of one. All sizes except the batch size are constants. So every batch
must have the shapes of the first one. In simulations without mathematics this is the case.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline.model.cutting.chain import is_chain, layers_in, only_input
from paceline.model.cutting.exporting import Exported, computes, export
from paceline.model.cutting.layer_signature import layer_signature, shapes_of
from paceline.model.cutting.parts import Arguments
from paceline.model.cutting.trial import Trial, try_out

_SIZE = torch.ops.aten.sym_size.int


@dataclass(slots=True)
class _Layer:
    """A traced layer."""

    exported: Exported
    trial: Trial
    made: fx.Node
    """Output of the layer."""


def trace_layers(module: nn.Module, arguments: Arguments, samples: int) -> tuple[Exported, Trial] | None:
    """Return the result of tracing the whole module. None if it cannot be traced layer by layer."""
    if not is_chain(module) or not all(parameter.is_meta for parameter in module.parameters()):
        return None
    value, known, layers = only_input(arguments), dict[Hashable, _Layer](), []
    for name, layer in layers_in("", module):
        if not isinstance(value, Tensor) or not value.dim() or len(value) != samples:
            return None
        key = layer_signature(layer), shapes_of(value)
        traced = None if None in key else known.get(key)
        traced = known[key] = traced or _trace(layer, value, samples)
        layers.append((name, layer, traced))
        made = traced.trial.values[traced.made]
        value = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    return _Joined(module, layers, samples).result() if layers else None


def _trace(layer: nn.Module, value: Tensor, samples: int) -> _Layer:
    arguments = Arguments((value,), {})
    exported = export(layer, arguments, samples, fixed=True)
    made: Any = exported.output.args[0]
    return _Layer(exported, try_out(exported, layer, arguments, samples), made[0])


@dataclass(slots=True)
class _Joined:
    """The graphs of all layers, joined into one."""

    module: nn.Module
    layers: list[tuple[str, nn.Module, _Layer]]
    samples: int
    graph: fx.Graph = field(default_factory=fx.Graph)
    state: dict[fx.Node, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """Names of the model's parameters, by identity."""
    buffers: dict[int, str] = field(default_factory=dict)
    batch_size: fx.Node | None = None

    def result(self) -> tuple[Exported, Trial]:
        trial = self._begin_trial()
        copies = [self._hold_state(name, layer, traced, trial) for name, layer, traced in self.layers]
        first, last = self.layers[0][2], self.layers[-1][2]
        (old_input,) = first.exported.inputs
        given = self.graph.placeholder(old_input.name)
        given.meta = dict(old_input.meta)
        _note(given, old_input, first, trial)
        value = given
        for (name, _, traced), own in zip(self.layers, copies, strict=True):
            value = self._add(name, traced, trial, own, value, given)
        self.graph.output(fx.map_arg(last.exported.output.args[0], lambda node: copies[-1][node]))
        symbols = frozenset[Any]().union(*(each.exported.batch_symbols for *_, each in self.layers))
        joined = last.exported.joined(self.graph, self.state, {given: 0}, self.constants, symbols)
        return joined, trial

    def _begin_trial(self) -> Trial:
        named = list(self.module.named_parameters())
        self.names = {id(parameter): name for name, parameter in named}
        self.buffers = {id(buffer): name for name, buffer in self.module.named_buffers()}
        return Trial(self.samples, trainable=frozenset(name for name, each in named if each.requires_grad))

    def _add(
        self,
        name: str,
        traced: _Layer,
        trial: Trial,
        copies: dict[fx.Node, fx.Node],
        value: fx.Node,
        given: fx.Node,
    ) -> fx.Node:
        """Add a layer's operations on `value`, and return the output. `given` is the input of the model."""
        (entry,) = traced.exported.inputs
        copies[entry] = value
        for node in traced.exported.graph_module.graph.nodes:
            if node in copies or node.op == "output" or not computes(node):
                continue
            if _is_batch_size(node, entry):
                self.batch_size = self.batch_size or self._copy(node, {entry: given}, name, traced, trial)
                copies[node] = self.batch_size
            else:
                copies[node] = self._copy(node, copies, name, traced, trial)
        return copies[traced.made]

    def _hold_state(
        self,
        name: str,
        layer: nn.Module,
        traced: _Layer,
        trial: Trial,
    ) -> dict[fx.Node, fx.Node]:
        """Add a layer's parameters, buffers and constants before all operations."""
        copies = {}
        for node, own_name in traced.exported.state.items():
            made = copies[node] = self.graph.placeholder(f"state_{name}_{own_name}".replace(".", "_"))
            made.meta = dict(node.meta)
            self.state[made] = f"{name}.{own_name}"
            value = traced.exported.fetcher(layer, node)()
            if id(value) in self.names:
                trial.parameters[made] = self.names[id(value)]
            if id(value) in self.buffers:
                trial.buffers[made] = self.buffers[id(value)]
            _note(made, node, traced, trial)
        self.constants |= {f"{name}.{each}": value for each, value in traced.exported.constants.items()}
        return copies

    def _copy(
        self, node: fx.Node, copies: dict[fx.Node, fx.Node], name: str, traced: _Layer, trial: Trial
    ) -> fx.Node:
        made = self.graph.node_copy(node, lambda each: copies[each])
        stack = node.meta.get("nn_module_stack") or {}
        made.meta["nn_module_stack"] = {
            f"{name}.{key}": (f"{name}.{path}" if path else name, kind) for key, (path, kind) in stack.items()
        }
        _note(made, node, traced, trial)
        return made


def _note(made: fx.Node, node: fx.Node, traced: _Layer, trial: Trial) -> None:
    """Copy the trial results of an operation to the copied operation."""
    trial.values[made], trial.counts[made] = traced.trial.values[node], traced.trial.counts[node]


def _is_batch_size(node: fx.Node, entry: fx.Node) -> bool:
    """Return whether a node is the first size of the layer's input, which equals the batch size of the model."""
    return node.op == "call_function" and node.target is _SIZE and node.args == (entry, 0)
