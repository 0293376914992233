"""What a task's loss must make of a model's outputs. What is wrong with it is told by name, not in torch's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from paceline.errors import ConfigurationError, PacelineError
from paceline.task_checks import look_of
from paceline.user_code import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["checked_loss", "loss_of_outputs"]

_MEAN = "return the mean over the samples"


def loss_of_outputs(loss: Callable[[Any, Any], Any], outputs: Any, target: Any) -> Tensor:
    """The loss of outputs that may be anything. Of a tensor, errors are the loss's own."""
    try:
        value = loss(outputs, target)
    except PacelineError:
        raise
    except Exception as error:
        if isinstance(outputs, Tensor):
            raise
        remedy = (
            "take out what it needs, such as loss=lambda outputs, target: cross_entropy(outputs['logits'], target); "
            f"it failed:\n{user_traceback(error)}"
        )
        found = f"outputs {look_of(outputs)}"
        raise ConfigurationError("loss", "must take what the model returns", found, remedy) from None
    return checked_loss(value)


def checked_loss(value: Any) -> Tensor:
    """The value, if a gradient can be made of it."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
        return value
    bound = "must be a tensor of one element"
    if isinstance(value, tuple | list):
        raise ConfigurationError("loss", bound, _parts(value), "return one number: the sum of its parts, say")
    if not isinstance(value, Tensor):
        raise ConfigurationError("loss", bound, look_of(value), _MEAN)
    if value.numel() != 1:
        remedy = f"{_MEAN}: loss.mean(), or no reduction='none'"
        raise ConfigurationError("loss", bound, f"a tensor {look_of(value)}", remedy)
    remedy = "do not compute it under torch.no_grad, nor with detach() or item()"
    raise ConfigurationError("loss", "must depend on a trainable parameter", "one without a gradient", remedy)


def _parts(value: tuple[Any, ...] | list[Any]) -> str:
    return f"a {type(value).__name__} of {len(value)}: {'; '.join(map(look_of, value[:4]))}"
