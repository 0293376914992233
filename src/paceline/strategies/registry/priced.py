"""Tasks with 16-bit precision, for simulations without computation and for predictions.

They have the storage of accelerators: parameters and gradients of 16 bits, and with the optimizer state a master copy
of 32 bits. Several micro-batches accumulate gradients in 32 bits.
Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.strategies.shared.pipelining.program import SegmentedStrategy
from paceline.task.checks import is_factory

if TYPE_CHECKING:
    import torch
    from torch import nn

    from paceline.context import Strategy
    from paceline.task.task import Task


def stored_in_16_bits(task: Task, strategy: Strategy, workers: int) -> Task:
    """Return the task with the storage of its precision. The same task if that is "fp32"."""
    if task.precision == "fp32":
        return task
    for argument in ("master_dtype", "gradient_dtype"):
        if getattr(task, argument) is not None:
            bound = f'must not be given with precision="{task.precision}", which sets it'
            raise ConfigurationError(argument, bound, getattr(task, argument), "omit one of the two")
    return _stored(task, _microbatches(task, strategy, workers) > 1)


def _microbatches(task: Task, strategy: Strategy, workers: int) -> int:
    if isinstance(strategy, SegmentedStrategy):
        plan = strategy.plan(workers)
        return plan.microbatches_of(workers if plan.stages is None else plan.stages)
    given: int | None = getattr(strategy, "microbatches", None)
    return given or task.accumulate


@functools.lru_cache(maxsize=64)  # what is counted of a task is stored by its identity
def _stored(task: Task, accumulates: bool) -> Task:
    import torch
    from torch.utils.data import DataLoader, default_collate

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[task.precision]
    data: Any = task.data() if is_factory(task.data) else task.data  # type: ignore[operator]
    collate: Any = task.collate
    if isinstance(data, tuple):
        data = _cast(data, dtype)
    else:
        own = data.collate_fn if isinstance(data, DataLoader) else default_collate
        collate = functools.partial(_collated, collate or own, dtype)
    return dataclasses.replace(
        task,
        precision="fp32",
        model=_built(task, dtype),
        data=data,
        collate=collate,
        master_dtype=torch.float32,
        gradient_dtype=torch.float32 if accumulates else None,
    )


def _built(task: Task, dtype: torch.dtype) -> nn.Module | Callable[[], nn.Module]:
    """Return the model with parameters of this dtype. A model of shapes only remains one."""
    from torch import nn

    if isinstance(task.model, nn.Module):
        return _narrowed(task.build_model(0), task.precision, dtype)
    return lambda: _narrowed(task.build_model(0), task.precision, dtype)


def _narrowed(module: nn.Module, precision: str, dtype: torch.dtype) -> nn.Module:
    import torch

    wrong = {each.dtype for each in module.parameters() if each.requires_grad} - {torch.float32}
    if wrong:
        remedy = "give a model in float32, or omit precision"
        names = ", ".join(sorted(map(str, wrong)))
        raise ConfigurationError("precision", f"must be fp32 for a model of {names}", precision, remedy)
    return module.to(dtype)


def _collated(collate: Callable[[Any], Any], dtype: torch.dtype, samples: Any) -> Any:
    return _cast(collate(samples), dtype)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Return the values with floating-point tensors in this dtype."""
    import torch
    from torch.utils._pytree import tree_map

    def cast(leaf: Any) -> Any:
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_float else leaf

    return tree_map(cast, values)
