"""Transfer of a built model to every rank: as a module, or as its factory and state.

A module that can be copied is sent unchanged, because its factory may be slow or load a file. A module that cannot
be copied, such as a parametrized or compiled one, is built again by its factory, and the state of the original
module is loaded.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from paceline.task.loops import build_modules, copied
from paceline.task.task import Task


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A factory that loads a given state into each module it makes. So all ranks get the same values."""

    factory: Callable[[], nn.Module]
    state: dict[str, Tensor]

    def __call__(self) -> nn.Module:
        module = self.factory()
        with torch.no_grad():
            module.load_state_dict(self.state)
        return module


def portable(given: Any, built: nn.Module) -> nn.Module | Rebuilt:
    """Return the form in which a task's built model (or models) is sent."""
    has_no_data = any(parameter.is_meta for parameter in built.parameters())
    if isinstance(given, nn.Module) or has_no_data or _can_be_copied(built):
        return built
    factory = functools.partial(build_modules, given) if isinstance(given, Mapping) else given
    return Rebuilt(factory, {name: tensor.detach() for name, tensor in built.state_dict().items()})


def copier(given: Any, built: nn.Module) -> Callable[[], nn.Module]:
    """Return a function that makes copies of a module in its present state, even if the module changes later."""
    sent = portable(given, built)
    if isinstance(sent, Rebuilt):
        return Rebuilt(sent.factory, {name: tensor.clone() for name, tensor in sent.state.items()})
    kept = copied(sent)
    return lambda: copied(kept)


def module_in_place(task: Task, seed: int) -> nn.Module:
    """Return the task's model for a replica. Its parameters share the memory of the task's own module.

    The replica moves them to its own memory, so a copy here would be wasted.
    """
    model = task.model
    trained = (
        [each for each in model.parameters() if each.requires_grad] if isinstance(model, nn.Module) else []
    )
    if not isinstance(model, nn.Module) or len({each.dtype for each in trained}) != 1:
        return task.build_model(seed)  # the replica does not move parameters of narrower dtypes
    memo: dict[int, Any] = {id(each): nn.Parameter(each.detach()) for each in trained if _is_plain(each)}
    return copied(model, memo)


def _is_plain(parameter: nn.Parameter) -> bool:
    """Return whether a parameter has no attributes and hooks, so that a new parameter can replace it."""
    return type(parameter) is nn.Parameter and not vars(parameter) and not parameter._backward_hooks


class _Trial(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a module without the values of its tensors. Fast."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            if not thing.is_leaf:  # a copy would lose its autograd history
                raise TypeError("a tensor that was computed from other tensors")
            return str, ()
        return super().reducer_override(thing)


def _can_be_copied(module: nn.Module) -> bool:
    try:
        _Trial(io.BytesIO()).dump(module)
    except Exception:
        return False
    return True
