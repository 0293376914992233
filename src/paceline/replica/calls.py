"""How a model is called with a batch, and where its loss and its target come from.

| a batch is | the model is called as | its target is |
|---|---|---|
| a tuple or list (also a named one) | `model(*all but the last)` | the last |
| a dictionary, and the task has a loss | `model(**all but the target)` | the entry `labels`, or what `TARGETS` names |
| a dictionary, and the task has none | `model(**all)` | the same |
| anything else | `model(batch)` | none |

Without a loss in the task, the model returns its own: as the attribute or the key `loss` of what it returns. A model
that takes `labels` gets its target by that name, whatever the data calls it. Texts and other entries without numbers
that the model does not take are left out; a tensor that it does not take is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.replica.losses import checked_loss, loss_of_outputs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.task import Task

__all__ = [
    "TARGETS",
    "arguments_of",
    "loss_from",
    "loss_of",
    "outputs_of",
    "own_loss",
    "predictions_of",
    "target_of",
]

TARGETS = ("labels", "label", "label_ids", "targets", "target", "y")
"""The names by which a dictionary's target is known; the first that is there counts."""


def loss_of(task: Task, module: nn.Module, batch: Any) -> Tensor:
    """The mean loss of a batch."""
    return loss_from(task, outputs_of(task, module, batch), batch)


def loss_from(task: Task, outputs: Any, batch: Any) -> Tensor:
    """The mean loss of what the model has made of a batch."""
    if task.loss is None:
        return checked_loss(own_loss(outputs))
    return loss_of_outputs(task.loss, outputs, _required_target(batch))


def outputs_of(task: Task, module: nn.Module, batch: Any) -> Any:
    """What the model makes of a batch."""
    args, kwargs = arguments_of(task, module, batch)
    return module(*args, **kwargs)


def arguments_of(task: Task, module: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with for a batch."""
    if isinstance(batch, Mapping):
        return (), _arguments(module, batch, with_target=task.loss is None)
    if isinstance(batch, tuple | list):
        return tuple(batch[:-1] if len(batch) > 1 else batch), {}
    return (batch,), {}


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


def _arguments(module: nn.Module, batch: Mapping[str, Any], *, with_target: bool) -> dict[str, Any]:
    """The entries of a batch by the names that the model knows them by."""
    target, (taken, takes_any) = _target_name(batch), _taken(_forward_of(module))
    given = dict(batch)
    if target is not None:
        value = given.pop(target)
        if with_target:
            given["labels" if target not in taken and "labels" in taken else target] = value
    return given if takes_any else _known(given, taken)


def _known(given: dict[str, Any], taken: Collection[str]) -> dict[str, Any]:
    from torch import Tensor

    refused = [name for name, value in given.items() if name not in taken and isinstance(value, Tensor)]
    if refused:
        bound = f"must have only entries that the model takes: {', '.join(sorted(taken))}"
        remedy = "leave the others out of the dataset, or of what collate=… makes of it"
        raise ConfigurationError("data", bound, ", ".join(refused), remedy)
    return {name: value for name, value in given.items() if name in taken}


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    # DistributedDataParallel and torch.compile take anything, and hand it to the module that they wrap.
    for name in ("module", "_orig_mod"):
        module = getattr(module, name, None) or module
    return type(module).forward


@lru_cache(maxsize=64)
def _taken(forward: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """The names of a method's arguments, and whether it takes any others."""
    arguments = list(inspect.signature(forward).parameters.values())[1:]
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments)
    return frozenset(argument.name for argument in arguments), takes_any


def own_loss(outputs: Any) -> Any:
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
