"""What can be told of a task without a trial: what works, but not as one might think; and what cannot be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from paceline.replica.optimizer import works_elementwise
from paceline.strategies import STRATEGIES
from paceline.strategies.pages import IN_PIECES, SYNCHRONOUS
from paceline.task import Task

__all__ = ["SEVERAL", "Finding", "caveats"]

SEVERAL = "all with several workers"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will not work, or not as one might think."""

    strategies: str
    why: str


def caveats(
    task: Task, module: nn.Module, targets: object, *, batch_size: int, workers: int
) -> Iterator[Finding]:
    """`targets` are those of a batch."""
    if batch_size < workers:
        why = f"a batch of {batch_size} samples has none for some of {workers} workers, which then wait"
        yield Finding(SEVERAL, why)
    if workers > 1:
        yield from _layers(module)
    if task.clip_norm is not None:
        why = "an update is of some workers' samples alone, and it is their gradient that is clipped"
        yield Finding(f"all but {_listed(('single', *SYNCHRONOUS, *IN_PIECES))}", why)
    for each in task.by_optimizer().values():
        optimizer = each.build_optimizer(module)
        if not works_elementwise(optimizer):
            name = type(optimizer).__name__
            why = f"{name} may need whole layers: shards are cut between layers, and may be uneven"
            several = f"{_listed(_with('servers'))} with several servers; all-reduce:algorithm=shared"
            yield Finding(several, why)
    if not _are_labels(targets):
        why = "partition=dirichlet and partition=shards need a whole number a sample as its target: use iid"
        yield Finding(_listed(_with("partition")), why)


def _layers(module: nn.Module) -> Iterator[Finding]:
    """Layers with which the weights depend on the number of workers: docs/decisions/0005-batch-norm.md."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            why = f"{_called(name, layer)}: it sees its worker's slice alone, as with DDP"
            yield Finding(SEVERAL, f"{why}, so that weights differ a little from those of single")
            break
    for name, layer in module.named_modules():
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            why = f"{_called(name, layer)}: each worker draws for itself"
            yield Finding(SEVERAL, f"{why}, so that weights are not those of single")
            break


def _called(name: str, layer: nn.Module) -> str:
    return f"{f'layer {name}' if name else 'the model'} is a {type(layer).__name__}"


def _with(parameter: str) -> tuple[str, ...]:
    """The strategies that have a parameter of this name."""
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
