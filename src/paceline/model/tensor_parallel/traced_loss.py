"""The task's loss appended to a traced model, as further operations: for outputs that are split among ranks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_unflatten

from paceline.errors import ConfigurationError
from paceline.model.cutting.exporting import Exported, program_of
from paceline.model.cutting.traced import Traced
from paceline.model.cutting.trial import Trial, run_counted
from paceline.task.calls import own_loss, target_of
from paceline.task.task import Task

_PREFIX = "(loss)."
"""Prefix for the names of the loss's own tensors. No module has such names."""


def with_loss(task: Task, traced: Traced, batch: Any) -> Traced:
    """Return the model with the loss as its output. Raise `ConfigurationError` if the loss cannot be traced."""
    target = () if task.loss is None else target_of(batch)
    outputs = list(traced.exported.output.args[0])  # type: ignore[arg-type]
    module = _Loss(task, traced.exported.out_spec, outputs)
    try:
        loss = _exported(module, target, [each for each in outputs if isinstance(each, fx.Node)], traced)
    except ConfigurationError:
        raise
    except Exception as error:
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigurationError("loss", "must be one that can be traced", words[:200]) from error
    return _Joint(traced, loss, target).traced


class _Loss(nn.Module):
    """A loss as a function of targets and of the tensors in a model's outputs."""

    def __init__(self, task: Task, out_spec: TreeSpec, outputs: Sequence[Any]) -> None:
        super().__init__()
        self.loss = task.loss
        self._out_spec = out_spec
        self._outputs = outputs

    def forward(self, target: Any, tensors: list[Tensor]) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(each, fx.Node) else each for each in self._outputs]
        outputs = tree_unflatten(leaves, self._out_spec)
        return own_loss(outputs) if self.loss is None else self.loss(outputs, target)


def _exported(module: _Loss, target: Any, outputs: Sequence[fx.Node], traced: Traced) -> Exported:
    values = [_blank(traced.trial.values[node]) for node in outputs]
    open_dims = [_open_dims(node.meta["val"]) for node in outputs]
    shapes = tree_map(_all_open, target), open_dims
    given = tree_map(lambda leaf: _blank(leaf) if isinstance(leaf, Tensor) else leaf, target)
    exported = Exported(program_of(module, (given, values), None, shapes))
    for node, dims in zip(exported.placeholders[-len(outputs) :], open_dims, strict=True):
        if any(
            isinstance(node.meta["val"].shape[dim], int) for dim, kind in dims.items() if kind == Dim.AUTO
        ):
            bound = "must be one that can be traced for a batch of any size"
            raise ConfigurationError("loss", bound, "it works for one size only")
    exported.rename(module, _PREFIX)
    return exported


def _blank(value: Tensor) -> Tensor:
    """Return a tensor of the same shape that takes the memory of one number."""
    return torch.zeros((1,) * value.dim(), dtype=value.dtype, device=value.device).expand(tuple(value.shape))


def _open_dims(value: Tensor) -> dict[int, Any]:
    """Return the dynamic sizes of a value: those that are dynamic in the model."""
    return {dim: Dim.STATIC if isinstance(size, int) else Dim.AUTO for dim, size in enumerate(value.shape)}


def _all_open(leaf: Any) -> Any:
    return dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, Tensor) else None


class _Joint:
    """A model's graph followed by the graph of its loss, as one."""

    def __init__(self, traced: Traced, loss: Exported, target: Any) -> None:
        self._old = traced
        self._loss = loss
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        targets, given = tree_leaves(target), list(loss.inputs)
        first = len(traced.exported.inputs)
        self._outputs = dict(zip(given[len(targets) :], traced.exported.output.all_input_nodes, strict=True))
        """Outputs of the model that the loss uses."""
        loss.inputs = {node: first + number for number, node in enumerate(given[: len(targets)])}
        self._add()
        trial = self._trial(targets)
        exported = traced.exported.followed_by(loss, self._graph, self._copies)
        self.traced = copy.copy(traced)
        self.traced.begin(exported, trial)

    def _add(self) -> None:
        model, loss = (each.graph_module.graph.nodes for each in (self._old.exported, self._loss))
        own = [node for node in loss if node not in self._outputs]
        nodes = [*(node for node in model if node.op != "output"), *own]
        # Stable: all others stay in order.
        for node in sorted(nodes, key=lambda node: node.op != "placeholder"):
            self._copies[node] = self._graph.node_copy(node, self._input)

    def _input(self, node: fx.Node) -> fx.Node:
        return self._copies[self._outputs.get(node, node)]

    def _trial(self, targets: Sequence[Any]) -> Trial:
        """Return the trial results of the model and of the loss."""
        old, loss = self._old.trial, Trial(self._old.trial.samples)
        mode: Any = next(old.values[node] for node in self._outputs.values()).fake_mode
        fakes = []
        for node in self._loss.placeholders:
            if node in self._outputs:
                value: Any = old.values[self._outputs[node]]
            elif node in self._loss.inputs:
                value = targets[self._loss.inputs[node] - len(self._old.exported.inputs)]
            else:
                value = self._loss.constant(node)
            fakes.append(mode.from_tensor(value.detach()) if isinstance(value, Tensor) else value)
        with mode, torch.no_grad():
            run_counted(self._loss.graph_module, loss, fakes)
        made = Trial(old.samples, trainable=old.trainable)
        for trial in (old, loss):
            for node in trial.values.keys() & self._copies.keys():
                made.values[self._copies[node]] = trial.values[node]
                made.counts[self._copies[node]] = trial.counts[node]
        made.parameters = {self._copies[node]: name for node, name in old.parameters.items()}
        made.buffers = {self._copies[node]: name for node, name in old.buffers.items()}
        return made
