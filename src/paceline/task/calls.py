"""How the model is called with a batch, and where the loss and the target come from.

| a batch is | the model is called as | its target is |
|---|---|---|
| a tuple or list (also a named one), and the task has a loss | `model(*all but the last)` | the last |
| a tuple or list, the task has none, and forward takes them all | `model(*all)` | the last |
| a dictionary, and the task has a loss | `model(**all but the target)` | the entry `labels`, or another of `TARGETS` |
| a dictionary, and the task has none | `model(**all)` | the same |
| anything else | `model(batch)` | none |

If the task has no loss, the model must return one: as the attribute or the key `loss` of its output, or as the only
scalar tensor of a tuple such as `(logits, loss)`. If the model's forward takes `labels`, the target is passed under
that name, even if it has another name in the data. Entries that forward does not take are dropped, unless they are
tensors: an unexpected tensor is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.task.losses import checked_loss, loss_of_outputs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.task.task import Task

TARGETS = ("labels", "label", "label_ids", "targets", "target", "y")
"""Keys under which a dictionary batch may store its target. The first key present is used."""


def loss_of(task: Task, module: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of a batch."""
    return loss_from(task, outputs_of(task, module, batch), batch)


def loss_from(task: Task, outputs: Any, batch: Any) -> Tensor:
    """Return the mean loss, given the model's outputs for the batch."""
    if task.loss is None:
        return checked_loss(own_loss(outputs))
    return loss_of_outputs(task.loss, outputs, _required_target(batch))


def outputs_of(task: Task, module: nn.Module, batch: Any) -> Any:
    """Call the model with a batch and return its outputs."""
    args, kwargs = arguments_of(task, module, batch)
    return module(*args, **kwargs)


def arguments_of(task: Task, module: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of the model call for a batch."""
    if isinstance(batch, Mapping):
        return (), _arguments(module, batch, with_target=task.loss is None)
    if isinstance(batch, tuple | list):
        passes_all = len(batch) == 1 or (task.loss is None and _takes(module, len(batch)))
        return tuple(batch if passes_all else batch[:-1]), {}
    return (batch,), {}


def predictions_of(outputs: Any) -> Any:
    """Return the predictions that a metric receives: `outputs.logits` or `outputs["logits"]`, else all outputs."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def target_of(batch: Any) -> Any:
    """Return the target of a batch or of one sample; None if it has none."""
    if isinstance(batch, Mapping):
        name = _target_name(batch)
        return None if name is None else batch[name]
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def _arguments(module: nn.Module, batch: Mapping[str, Any], *, with_target: bool) -> dict[str, Any]:
    """Return a batch's entries as keyword arguments, under the names in the signature of forward."""
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
        remedy = "remove the other entries from the dataset, or in collate=…"
        raise ConfigurationError("data", bound, ", ".join(refused), remedy)
    return {name: value for name, value in given.items() if name in taken}


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    # DistributedDataParallel and torch.compile accept any arguments and pass them to the wrapped module.
    for name in ("module", "_orig_mod"):
        module = getattr(module, name, None) or module
    return type(module).forward


def _takes(module: nn.Module, count: int) -> bool:
    """Return whether a module can be called with `count` positional arguments."""
    arguments = list(inspect.signature(_forward_of(module)).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_any = any(argument.kind is argument.VAR_POSITIONAL for argument in arguments)
    return takes_any or sum(argument.kind in kinds for argument in arguments) >= count


@lru_cache(maxsize=64)
def _taken(forward: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """Return the names of a method's parameters, and whether it also accepts **kwargs."""
    arguments = list(inspect.signature(forward).parameters.values())[1:]
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments)
    return frozenset(argument.name for argument in arguments), takes_any


def own_loss(outputs: Any) -> Any:
    """Return the loss that the model computed itself."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, tuple | list):
        loss = _only_scalar(outputs)
    if loss is None:
        remedy = (
            "give Task(loss=…), or return an object with an attribute or key loss, or a tuple with one scalar"
        )
        raise ConfigurationError(
            "loss", "may be omitted only if the model returns its own loss", type(outputs).__name__, remedy
        )
    return loss


def _only_scalar(outputs: Iterable[Any]) -> Any:
    """Return the only scalar tensor among a model's outputs; None if there is none or more than one."""
    from torch import Tensor

    scalars = [value for value in outputs if isinstance(value, Tensor) and not value.dim()]
    return scalars[0] if len(scalars) == 1 else None


def _required_target(batch: Any) -> Any:
    target = target_of(batch)
    if target is None:
        names = ", ".join(batch) if isinstance(batch, Mapping) else type(batch).__name__
        remedy = f"return inputs and then a target, or a dictionary with one of {', '.join(TARGETS)}"
        raise ConfigurationError("data", "must yield a target for the task's loss", names, remedy)
    return target


def _target_name(batch: Mapping[str, Any]) -> str | None:
    return next((name for name in TARGETS if name in batch), None)
