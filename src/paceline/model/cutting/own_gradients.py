"""Refusal of code that changes gradients in a way that a trace does not have.

A trace has the operations of the forward pass only, and autograd differentiates these. It would silently ignore the
backward pass of a custom autograd function, and hooks that change gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.utils.checkpoint import CheckpointFunction

from paceline.errors import ConfigurationError

_FUNCTION: Any = _SingleLevelFunction
"""Base class of custom autograd functions."""

_REMEDY = "{}; or use zero:stage=3, which does not need a trace"


@contextlib.contextmanager
def refused_own_gradients(module: nn.Module) -> Iterator[None]:
    """Raise ConfigurationError for such code of a module that is traced in the block."""
    for name, each in module.named_modules():
        if each._backward_hooks or each._backward_pre_hooks:
            bound = "must have no layer with a backward hook if it is cut"
            raise ConfigurationError("model", bound, name or "the model", _REMEDY.format("remove the hook"))
    register = Tensor.register_hook
    # `Function.apply` calls the method of its base class. Users may have stored `Function.apply` itself.
    _FUNCTION.apply = classmethod(_applied)
    Tensor.register_hook = _hooked  # type: ignore[method-assign]
    try:
        yield
    finally:
        del _FUNCTION.apply
        Tensor.register_hook = register  # type: ignore[method-assign]


def _applied(function: type[Any], *args: Any, **kwargs: Any) -> Any:
    """Refuse a function with its own backward pass. A trace has only its forward pass, which autograd would
    differentiate.
    """
    if function.__module__.partition(".")[0] == "torch" and function is not CheckpointFunction:
        # A function of checkpoints without re-entry, which computes nothing.
        return super(_FUNCTION, function).apply(*args, **kwargs)
    if function is CheckpointFunction:
        bound, remedy = "must not have a checkpoint with re-entry if it is cut", "set use_reentrant=False"
    else:
        bound = "must have no function with its own backward pass if it is cut"
        remedy = "write it with operations that autograd differentiates"
    raise ConfigurationError("model", bound, function.__name__, _REMEDY.format(remedy))


def _hooked(_tensor: Tensor, hook: Any) -> None:
    bound = "must have no hooks of tensors if it is cut"
    name = getattr(hook, "__name__", type(hook).__name__)
    raise ConfigurationError(
        "model", bound, name, _REMEDY.format("change gradients in a loss or an optimizer")
    )
