"""How a model that was built once reaches every rank: as it is, or as what makes it and its state.

A built module that can be copied travels itself: its factory may take long, or load a file. One that cannot, such as a
parametrized or a compiled one, is built anew by its factory and given the state of the first.
"""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from paceline.task import Task
from paceline.task_loops import build_modules

__all__ = ["Rebuilt", "copier", "portable", "taken_over"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A factory that gives what it makes the state of another: the same on every rank, whatever chance does."""

    factory: Callable[[], nn.Module]
    state: dict[str, Tensor]

    def __call__(self) -> nn.Module:
        module = self.factory()
        with torch.no_grad():
            module.load_state_dict(self.state)
        return module


def portable(given: Any, built: nn.Module) -> nn.Module | Rebuilt:
    """What a task's model (or its several), built already, travels as."""
    has_no_data = any(parameter.is_meta for parameter in built.parameters())
    if isinstance(given, nn.Module) or has_no_data or _can_be_copied(built):
        return built
    factory = functools.partial(build_modules, given) if isinstance(given, Mapping) else given
    return Rebuilt(factory, {name: tensor.detach() for name, tensor in built.state_dict().items()})


def copier(given: Any, built: nn.Module) -> Callable[[], nn.Module]:
    """What makes modules that are as this one is now, whatever becomes of it."""
    sent = portable(given, built)
    if isinstance(sent, Rebuilt):
        return Rebuilt(sent.factory, {name: tensor.clone() for name, tensor in sent.state.items()})
    kept = copy.deepcopy(sent)
    return lambda: copy.deepcopy(kept)


def taken_over(task: Task, seed: int) -> nn.Module:
    """The task's model, for a replica: its parameters lie where those of the task's own module do.

    A replica gives them memory of its own. A copy before that would only be thrown away.
    """
    model = task.model
    trained = (
        [each for each in model.parameters() if each.requires_grad] if isinstance(model, nn.Module) else []
    )
    if not isinstance(model, nn.Module) or len({each.dtype for each in trained}) != 1:
        return task.build_model(seed)  # parameters that are not of the widest type stay where they are
    memo: dict[int, Any] = {id(each): nn.Parameter(each.detach()) for each in trained if _is_plain(each)}
    return copy.deepcopy(model, memo)


def _is_plain(parameter: nn.Parameter) -> bool:
    """Whether it is a parameter and nothing else, so that a new one stands for it."""
    return type(parameter) is nn.Parameter and not vars(parameter) and not parameter._backward_hooks


class _Trial(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles all but the numbers in tensors: that takes no time."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            if not thing.is_leaf:  # a copy of it would be another kind of tensor
                raise TypeError("a tensor that was computed from others")
            return str, ()
        return super().reducer_override(thing)


def _can_be_copied(module: nn.Module) -> bool:
    try:
        _Trial(io.BytesIO()).dump(module)
    except Exception:
        return False
    return True
