"""How a model is called with a batch, and where its loss and its target come from.

| a batch is | the model is called as | its target is |
|---|---|---|
| a tuple or list (also a named one) | `model(*all but the last)` | the last |
| a dictionary, and the task has a loss | `model(**all but the target)` | the entry `labels`, or what `TARGETS` names |
| a dictionary, and the task has none | `model(**all)` | the same |
| anything else | `model(batch)` | none |

Without a loss in the task, the model returns its own: as the attribute or the key `loss` of what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.task import Task

__all__ = ["TARGETS", "loss_of", "outputs_of", "predictions_of", "target_of"]

TARGETS = ("labels", "label", "targets", "target", "y")
"""The names by which a dictionary's target is known; the first that is there counts."""


def loss_of(task: Task, module: nn.Module, batch: Any) -> Tensor:
    """The mean loss of a batch."""
    outputs = outputs_of(task, module, batch)
    loss: Tensor = _own_loss(outputs) if task.loss is None else task.loss(outputs, _required_target(batch))
    return loss


def outputs_of(task: Task, module: nn.Module, batch: Any) -> Any:
    """What the model makes of a batch."""
    if isinstance(batch, Mapping):
        hidden = None if task.loss is None else _target_name(batch)
        return module(**{name: value for name, value in batch.items() if name != hidden})
    if isinstance(batch, tuple | list):
        return module(*(batch[:-1] if len(batch) > 1 else batch))
    return module(batch)


def predictions_of(outputs: Any) -> Any:
    """What a metric is given of a model's outputs: their attribute or key `logits`, or else all of them."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def target_of(batch: Any) -> Any:
    """The target of a batch, or of one sample; None where it has none."""
    if isinstance(batch, Mapping):
        name = _target_name(batch)
        return None if name is None else batch[name]
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def _own_loss(outputs: Any) -> Any:
    """The loss that a model has computed itself."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None:
        remedy = "give Task(loss=…), or return an object with an attribute or a key loss"
        raise ConfigurationError(
            "loss", "may be left out only where the model returns its own", type(outputs).__name__, remedy
        )
    return loss


def _required_target(batch: Any) -> Any:
    target = target_of(batch)
    if target is None:
        names = ", ".join(batch) if isinstance(batch, Mapping) else type(batch).__name__
        remedy = f"give inputs and then a target, or a dictionary with one of {', '.join(TARGETS)}"
        raise ConfigurationError("data", "must yield a target for the task's loss", names, remedy)
    return target


def _target_name(batch: Mapping[str, Any]) -> str | None:
    return next((name for name in TARGETS if name in batch), None)
