"""Findings about a task without a trial: surprising behaviour, and options that cannot be used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from paceline.model.optimizer.flat import works_elementwise
from paceline.strategies import STRATEGIES
from paceline.strategies.registry.descriptions import IN_PIECES, SYNCHRONOUS
from paceline.task.task import Task

SEVERAL = "all with several workers"


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of the task that will not work, or not as expected."""

    strategies: str
    why: str


def caveats(
    task: Task, module: nn.Module, targets: object, *, batch_size: int, workers: int
) -> Iterator[Finding]:
    """Yield the findings. `targets` are the targets of a batch."""
    if batch_size < workers:
        why = f"some of {workers} workers get no samples from a batch of {batch_size}, and only wait"
        yield Finding(SEVERAL, why)
    if workers > 1:
        yield from _layers(module)
    if task.clip_norm is not None:
        why = "an update uses the samples of only some workers, and the gradient of these samples is clipped"
        yield Finding(f"all except {_listed(('single', *SYNCHRONOUS, *IN_PIECES))}", why)
    for each in task.by_optimizer().values():
        optimizer = each.build_optimizer(module)
        if not works_elementwise(optimizer):
            name = type(optimizer).__name__
            why = f"{name} may need whole layers: shards are cut between layers, and may be uneven"
            several = f"{_listed(_with('servers'))} with several servers; all-reduce:algorithm=shared"
            yield Finding(several, why)
    if not _are_labels(targets):
        why = "partition=dirichlet and partition=shards need an integer target for each sample: use iid"
        yield Finding(_listed(_with("partition")), why)


def _layers(module: nn.Module) -> Iterator[Finding]:
    """Yield layers that make the weights depend on the number of workers: see docs/decisions/0005-batch-norm.md."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            why = f"{_called(name, layer)}: it normalises each worker's slice separately, as with DDP"
            yield Finding(SEVERAL, f"{why}, so the weights differ slightly from single")
            break
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            why = f"{_called(name, layer)} with max_norm: each worker changes the rows that it uses in its own copy"
            yield Finding(SEVERAL, f"{why}, so copies differ, and shards lose the change; omit max_norm")
            break
    for name, layer in module.named_modules():
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            why = f"{_called(name, layer)}: each worker draws its own random numbers"
            yield Finding(SEVERAL, f"{why}, so the weights differ from single")
            break


def _called(name: str, layer: nn.Module) -> str:
    return f"{f'layer {name}' if name else 'the model'} is a {type(layer).__name__}"


def _with(parameter: str) -> tuple[str, ...]:
    """Return the strategies that have a parameter of this name."""
    return tuple(
        name
        for name, kind in STRATEGIES.items()
        if any(field.name == parameter for field in dataclasses.fields(kind))
    )


def _are_labels(targets: object) -> bool:
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    return isinstance(targets, Tensor) and targets.ndim == 1 and targets.dtype in whole


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
