"""Cost of a whole model, counted without computing it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from paceline.errors import ConfigurationError
from paceline.model.cutting.chain import is_chain
from paceline.model.cutting.counting import Count, counted
from paceline.model.cutting.layers import Layers, samples_in
from paceline.model.cutting.parts import Arguments, Part
from paceline.task.calls import arguments_of
from paceline.task.task import Task


def count_model(task: Task, module: nn.Module, batch: Any) -> Count:
    """Return the cost of a forward pass of one sample. `batch` is a small batch of the task's data. `module` is
    unchanged.
    """
    if task.step is not None:
        remedy = "give the task a loss, or give compute=pl.times.… instead"
        bound = "must not be given for a task with its own step"
        raise ConfigurationError("device", bound, task.step, remedy)
    if is_chain(module):
        return summed(Layers.of(task, module, batch).model.parts)
    blank = copy.deepcopy(module).to("meta").train()
    arguments = Arguments(*arguments_of(task, blank, without_data(batch)))
    try:
        with torch.no_grad():
            _, count = counted(lambda: blank(*arguments.args, **arguments.kwargs))
    except Exception as error:
        remedy = "give compute=pl.times.… instead, or leave out both to measure"
        bound = f"must not be given for a {type(module).__name__} that cannot be called without data"
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigurationError("device", bound, words[0], remedy) from error
    return count.per_sample(samples_in(arguments))


def summed(parts: Sequence[Part]) -> Count:
    """Return the cost of several parts."""
    return Count(*(sum(getattr(part, field) for part in parts) for field in Count._fields))


def without_data(batch: Any) -> Any:
    """Return the same shapes on the meta device."""
    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, batch)
