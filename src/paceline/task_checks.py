"""What a task's arguments must be. They are checked when the task is made, and what factories make when it is made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any

from paceline.errors import ConfigurationError, UnknownNameError

__all__ = [
    "check_data",
    "check_loss",
    "check_metric",
    "check_model",
    "check_numbers",
    "is_factory",
    "require",
    "steps_alone",
    "waits_for_metric",
]


def require(holds: bool, argument: str, bound: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigurationError(argument, bound, value, remedy)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_factory(given: object) -> bool:
    # A dataset may be callable too: what can be indexed is data. A class cannot, so it is a factory.
    return callable(given) and not hasattr(type(given), "__getitem__")


def steps_alone(stepper: Any) -> bool:
    """Whether `stepper.step()` needs no argument."""
    given = inspect.signature(stepper.step).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in given)


def waits_for_metric(schedule: Any) -> bool:
    """Whether a learning-rate schedule is stepped with a metric."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    return isinstance(schedule, ReduceLROnPlateau)


def check_numbers(batch_size: object, clip_norm: float | None, target: float | None) -> None:
    counts = isinstance(batch_size, int) and _is_finite(batch_size) and batch_size > 0
    remedy = "it counts the samples of one step, over all workers"
    require(counts, "batch_size", "must be an int of at least 1", batch_size, remedy)
    clips = clip_norm is None or (_is_finite(clip_norm) and clip_norm > 0)
    require(clips, "clip_norm", "must be finite and above 0", clip_norm, "leave it out for none")
    aims = target is None or _is_finite(target)
    require(aims, "target", "must be a finite number", target, "leave it out for none")


def check_metric(metric: object, test: object, target: float | None, names: Collection[str]) -> None:
    """`names` are those that a metric may be given by."""
    tests = metric is None or test is not None
    require(tests, "test", "must be given with a metric", test, "add test=… or drop metric")
    aims = target is None or metric is not None
    require(aims, "metric", "must be given with a target", metric, "add metric=… or drop target")
    given = metric if isinstance(metric, Mapping) else {"": metric}
    require(bool(given), "metric", "must name at least one", metric, 'such as {"accuracy": "accuracy"}')
    for name, each in given.items():
        require(isinstance(name, str), "metric", "must have names as keys", name, "it names a column")
        _check_one_metric(f"metric[{name!r}]" if name else "metric", each, names)


def _check_one_metric(argument: str, metric: object, names: Collection[str]) -> None:
    if isinstance(metric, str) and metric not in names:
        raise UnknownNameError(argument, metric, names)
    known = metric is None or isinstance(metric, str) or callable(metric) or hasattr(metric, "update")
    remedy = "give 'accuracy', a callable (outputs, targets) -> float, or what has update and compute"
    require(known, argument, "must be a name, a callable or a metric object", metric, remedy)
    if not isinstance(metric, str) and hasattr(metric, "update"):
        computes = hasattr(metric, "compute")
        require(computes, argument, "must have compute where it has update", metric, "as torchmetrics has it")


def check_model(model: object, *, built: bool = False) -> None:
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not built and callable(model) and not isinstance(model, nn.Module):
        return
    remedy = "give the module, or a callable without arguments that makes it"
    if not isinstance(model, nn.Module):
        raise ConfigurationError("model", "must be an nn.Module or make one", model, remedy)
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    remedy = "call the model once on a sample where you make it"
    require(not lazy, "model", "must have no lazy parameters", ", ".join(lazy), remedy)
    trains = any(p.requires_grad and p.is_floating_point() for p in model.parameters())
    bound, name = "must have a trainable floating-point parameter", type(model).__name__
    require(trains, "model", bound, name, "nothing in it could be learned")


def check_loss(loss: object) -> None:
    from torch import nn

    if loss is None:
        return
    require(callable(loss), "loss", "must be callable", loss, "give a function (output, target) -> scalar")
    is_class = isinstance(loss, type) and issubclass(loss, nn.Module)
    require(not is_class, "loss", "must be an instance, not a class", loss, "add () after its name")
    learns = isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters())
    require(not learns, "loss", "must have no trainable parameters", loss, "put them into the model")


def check_data(argument: str, data: Any, fewest: int = 2) -> None:
    """`fewest`: tensors of a sample: inputs and a target, or whatever a step of the user's own takes."""
    from torch import Tensor
    from torch.utils.data import IterableDataset

    tensors = isinstance(data, tuple | list) and bool(data) and all(isinstance(part, Tensor) for part in data)
    if isinstance(data, tuple) or tensors:
        size = _check_tensors(argument, data, fewest)
    else:
        bound = "must be a tuple of tensors, a map-style Dataset, or a factory of either"
        mapped = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset | Tensor | dict | str)
        require(mapped, argument, bound, data, "a Dataset needs __getitem__ and __len__")
        try:
            size = len(data)
        except (TypeError, NotImplementedError):
            raise ConfigurationError(argument, "must have a length", data, "give it a __len__") from None
    require(size > 0, argument, "must hold at least one sample", size, "look at how it is loaded")


def _check_tensors(argument: str, tensors: Any, fewest: int) -> int:
    from torch import Tensor

    kinds = f"{type(tensors).__name__} of {', '.join(type(part).__name__ for part in tensors)}"
    usable = isinstance(tensors, tuple) and all(isinstance(part, Tensor) and part.ndim for part in tensors)
    remedy = "use torch.as_tensor, and () around them"
    require(usable, argument, "must be a tuple of tensors, each with a dimension of samples", kinds, remedy)
    enough = len(tensors) >= fewest
    require(enough, argument, "must be two tensors or more", kinds, "give inputs, then the target")
    sizes = [len(part) for part in tensors]
    bound = "must be tensors of equal first dimension"
    require(len(set(sizes)) == 1, argument, bound, sizes, "each holds one entry a sample")
    return sizes[0]
