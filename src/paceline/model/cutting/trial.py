"""Trial run of a traced model without data: shapes and cost of each operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from paceline.model.cutting.counting import Count, attention_flops, counted, nbytes_of
from paceline.model.cutting.exporting import Exported
from paceline.model.cutting.parts import Arguments


@dataclass(slots=True)
class Trial:
    """Results of a trial run, by operation."""

    samples: int
    values: dict[fx.Node, Any] = field(default_factory=dict)
    counts: dict[fx.Node, Count] = field(default_factory=dict)
    parameters: dict[fx.Node, str] = field(default_factory=dict)
    """Names of the parameters that are inputs of the graph."""
    buffers: dict[fx.Node, str] = field(default_factory=dict)
    trainable: frozenset[str] = frozenset()
    split: dict[fx.Node, int] = field(default_factory=dict)
    """Number of ranks that a value is split among, if it is split."""

    def nbytes(self, node: fx.Node) -> int:
        """Return the bytes of a value for one sample."""
        return nbytes_of(self.values[node]) // self.samples // self.split.get(node, 1)


def try_out(exported: Exported, module: nn.Module, arguments: Arguments, samples: int) -> Trial:
    """Run a traced module without data."""
    trial = Trial(samples)
    given = tree_leaves(tuple(arguments))
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    buffers = {id(buffer): name for name, buffer in module.named_buffers()}
    trial.trainable = frozenset(name for name, each in module.named_parameters() if each.requires_grad)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes: list[Any] = []
        for node in exported.placeholders:
            if node in exported.inputs:
                value = given[exported.inputs[node]]
            else:
                value = exported.fetcher(module, node)()
                if id(value) in names:
                    trial.parameters[node] = names[id(value)]
                if id(value) in buffers:
                    trial.buffers[node] = buffers[id(value)]
            fakes.append(mode.from_tensor(value.detach()) if isinstance(value, Tensor) else value)
        run_counted(exported.graph_module, trial, fakes)
    return trial


def run_counted(graph_module: fx.GraphModule, trial: Trial, given: Sequence[Any]) -> None:
    """Run a graph, and record the result and cost of each operation."""
    _Counting(graph_module, trial).run(*given)


class _Counting(fx.Interpreter):
    """Runs a graph and counts the cost of each operation."""

    def __init__(self, graph_module: fx.GraphModule, trial: Trial) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self._trial = trial

    def run_node(self, node: fx.Node) -> Any:
        made, count = counted(lambda: super(_Counting, self).run_node(node))
        if node.target is torch.ops.aten.scaled_dot_product_attention.default:
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            moved = nbytes_of((args, kwargs, made))
            count = Count(count.operations, attention_flops(*args, **kwargs), moved, 1)
        self._trial.values[node], self._trial.counts[node] = made, count
        return made
