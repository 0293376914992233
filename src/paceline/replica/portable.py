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

from paceline.task_loops import build_modules

__all__ = ["Rebuilt", "copier", "portable"]


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
