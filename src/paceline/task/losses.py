"""Checks of a task's loss on the model's outputs. Errors name the task's argument instead of showing torch's
message."""

from __future__ import annotations

import cmath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from paceline.errors import ConfigurationError, PacelineError
from paceline.system.user_code import user_traceback
from paceline.task.checks import look_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MEAN = "return the mean over the samples"


def loss_of_outputs(loss: Callable[[Any, Any], Any], outputs: Any, target: Any) -> Tensor:
    """Return the loss of arbitrary outputs.

    If the outputs are a tensor, errors of the loss are re-raised unchanged.
    """
    try:
        value = loss(outputs, target)
    except PacelineError:
        raise
    except Exception as error:
        if isinstance(outputs, Tensor):
            raise
        remedy = (
            "select the part that it needs: loss=lambda outputs, target: cross_entropy(outputs['logits'], target); "
            f"it failed:\n{user_traceback(error)}"
        )
        found = f"outputs {look_of(outputs)}"
        raise ConfigurationError("loss", "must take what the model returns", found, remedy) from None
    return checked_loss(value)


def checked_loss(value: Any) -> Tensor:
    """Return the value if it is a scalar tensor with a gradient, else raise."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
        return value
    bound = "must be a tensor of one element"
    if isinstance(value, tuple | list):
        raise ConfigurationError(
            "loss", bound, _parts(value), "return one number, such as the sum of several losses"
        )
    if not isinstance(value, Tensor):
        raise ConfigurationError("loss", bound, look_of(value), _MEAN)
    if value.numel() != 1:
        remedy = f"{_MEAN}: loss.mean(), or no reduction='none'"
        raise ConfigurationError("loss", bound, f"a tensor {look_of(value)}", remedy)
    remedy = "do not compute it under torch.no_grad, nor with detach() or item()"
    raise ConfigurationError("loss", "must depend on a trainable parameter", "one without a gradient", remedy)


def cause_of(value: Tensor, outputs: Any, target: Any) -> str:
    """Return why a loss is not finite, and the remedy. Empty if it is finite, or if the outputs are not finite either.

    Checks losses on the CPU only: reading a value from a device costs a synchronization.
    """
    if not value.is_cpu or cmath.isfinite(value.item()):
        return ""
    known = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    if not all(bool(torch.isfinite(leaf).all()) for leaf in known):
        return ""
    if isinstance(target, Tensor) and not target.is_floating_point() and target.numel():
        first = target.flatten()[0]
        if first < 0 and bool((target == first).all()):
            return (
                f"all targets of this micro-batch are {int(first)}: a mean that ignores these targets (ignore_index) "
                "divides by zero; use reduction='sum' and divide by target.numel(), or remove such samples"
            )
    text = "the model's outputs are finite: check the loss for a division, a logarithm or a root at zero"
    return text if known else ""


def _parts(value: tuple[Any, ...] | list[Any]) -> str:
    return f"a {type(value).__name__} of {len(value)}: {'; '.join(map(look_of, value[:4]))}"
