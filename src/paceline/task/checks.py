"""Checks of a task's arguments when the task is created, and of a factory's result when the factory is called."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any

from paceline.errors import ConfigurationError, UnknownNameError


def require(holds: bool, argument: str, bound: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigurationError(argument, bound, value, remedy)


def look_of(value: Any) -> str:
    """Describe a value briefly: the shape and dtype of a tensor or array, the keys of a dictionary."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, Mapping):
        return f"of type {type(value).__name__} with {', '.join(map(str, list(value)[:8]))}"
    return f"of type {type(value).__name__}"


def _takes(function: Any, arguments: int) -> bool:
    """Return whether a function accepts `arguments` positional arguments. True if its signature is unavailable."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # functions written in C may have no signature
        return True
    return True


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_factory(given: object) -> bool:
    # A dataset may be callable too: an object that can be indexed or iterated is data. A class is a factory.
    return callable(given) and not any(hasattr(type(given), name) for name in ("__getitem__", "__iter__"))


def is_stream(data: object) -> bool:
    """Return whether the data is a stream: samples come in sequence and cannot be indexed."""
    from torch.utils.data import IterableDataset

    if isinstance(data, IterableDataset):  # torch defines a __getitem__ that raises
        return True
    return hasattr(type(data), "__iter__") and not hasattr(type(data), "__getitem__")


def steps_alone(stepper: Any) -> bool:
    """Return whether `stepper.step()` needs no argument."""
    given = inspect.signature(stepper.step).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in given)


def waits_for_metric(schedule: Any) -> bool:
    """Return whether the learning-rate schedule is stepped with a metric."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    return isinstance(schedule, ReduceLROnPlateau)


def check_numbers(batch_size: object, clip_norm: float | None, target: float | None) -> None:
    counts = isinstance(batch_size, int) and _is_finite(batch_size) and batch_size > 0
    remedy = (
        "it is the number of samples in one step, over all workers; it may be omitted only with a DataLoader"
    )
    require(counts, "batch_size", "must be an int of at least 1", batch_size, remedy)
    clips = clip_norm is None or (_is_finite(clip_norm) and clip_norm > 0)
    require(clips, "clip_norm", "must be finite and above 0", clip_norm, "omit it for no clipping")
    aims = target is None or _is_finite(target)
    require(aims, "target", "must be a finite number", target, "omit it for no target")


def check_metric(metric: object, test: object, target: float | None, names: Collection[str]) -> None:
    """Check the metric arguments. `names` are the names of the built-in metrics."""
    tests = metric is None or test is not None
    require(tests, "test", "must be given with a metric", test, "add test=… or drop metric")
    aims = target is None or metric is not None
    require(aims, "metric", "must be given with a target", metric, "add metric=… or drop target")
    given = metric if isinstance(metric, Mapping) else {"": metric}
    require(bool(given), "metric", "must name at least one", metric, 'such as {"accuracy": "accuracy"}')
    for name, each in given.items():
        require(
            isinstance(name, str),
            "metric",
            "must have names as keys",
            name,
            "use strings: they become column names",
        )
        _check_one_metric(f"metric[{name!r}]" if name else "metric", each, names)


def _check_one_metric(argument: str, metric: object, names: Collection[str]) -> None:
    if isinstance(metric, str) and metric not in names:
        raise UnknownNameError(argument, metric, names)
    known = metric is None or isinstance(metric, str) or callable(metric) or hasattr(metric, "update")
    remedy = "give 'accuracy', a callable (outputs, targets) -> float, or an object with update and compute"
    require(known, argument, "must be a name, a callable or a metric object", metric, remedy)
    if not isinstance(metric, str) and hasattr(metric, "update"):
        computes = hasattr(metric, "compute")
        require(computes, argument, "must have compute if it has update", metric, "see torchmetrics")
        return
    takes = not callable(metric) or _takes(metric, 2) or _takes(metric, 0)
    require(takes, argument, "must take two arguments: outputs and targets", metric, remedy)


def check_better(better: object, metric: object) -> None:
    known = better in (None, "higher", "lower")
    require(
        known,
        "better",
        'must be "higher" or "lower"',
        better,
        "it states which values of the metric are better",
    )
    aims = better is None or metric is not None
    require(aims, "metric", "must be given with better", metric, "add metric=… or drop better")


def check_model(model: object, *, built: bool = False) -> None:
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not built and callable(model) and not isinstance(model, nn.Module):
        return
    remedy = "give the module, or a callable without arguments that creates it"
    if not isinstance(model, nn.Module):
        raise ConfigurationError("model", "must be an nn.Module or create one", model, remedy)
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    remedy = "call the model once on a sample when you create it"
    require(not lazy, "model", "must have no lazy parameters", ", ".join(lazy), remedy)
    # In torch only floating-point parameters (real or complex) can require a gradient.
    trains = any(p.requires_grad for p in model.parameters())
    bound, name = "must have a trainable floating-point parameter", type(model).__name__
    require(trains, "model", bound, name, "there is nothing to train")


def check_loss(loss: object) -> None:
    from torch import nn

    if loss is None:
        return
    require(callable(loss), "loss", "must be callable", loss, "give a function (output, target) -> scalar")
    is_class = isinstance(loss, type) and issubclass(loss, nn.Module)
    require(not is_class, "loss", "must be an instance, not a class", loss, "add () after its name")
    takes = isinstance(loss, nn.Module) or _takes(loss, 2)
    remedy = "give a function (output, target) -> scalar"
    require(takes, "loss", "must take two arguments: outputs and targets", loss, remedy)
    learns = isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters())
    require(not learns, "loss", "must have no trainable parameters", loss, "put them into the model")


def check_data(argument: str, data: Any, fewest: int = 2) -> None:
    """Check training or test data. `fewest` is the smallest number of tensors in a sample."""
    from torch import Tensor

    _check_kind(argument, data)
    tensors = isinstance(data, tuple | list) and bool(data) and all(isinstance(part, Tensor) for part in data)
    if isinstance(data, tuple) or tensors:
        size = _check_tensors(argument, data, fewest)
    elif is_stream(data):
        remedy = "give a list of its samples; it must be finite"
        require(argument != "test", argument, "must not be a stream", type(data).__name__, remedy)
        return
    else:
        bound = "must be a tuple of tensors, a map-style Dataset, a stream, or a factory of one"
        mapped = hasattr(data, "__getitem__") and not isinstance(data, Tensor)
        require(mapped, argument, bound, data, "a Dataset needs __getitem__ and __len__")
        try:
            size = len(data)
        except (TypeError, NotImplementedError):
            raise ConfigurationError(argument, "must have a length", data, "give it a __len__") from None
    require(size > 0, argument, "must have at least one sample", size, "check how it is loaded")


def _check_kind(argument: str, data: object) -> None:
    """Reject objects that can be indexed or iterated but are not datasets."""
    from torch.utils.data import DataLoader

    remedy = "give the function that creates it; it is called for every pass: data=make_samples"
    used_up = hasattr(type(data), "__next__")
    require(not used_up, argument, "must not be an iterator, which can be read only once", data, remedy)
    remedy = "return its dataset, and pass batch_size, collate and similar arguments to the task"
    made = isinstance(data, DataLoader)
    require(not made, argument, "must not be a DataLoader created by a factory", data, remedy)
    remedy = "give one of its entries, a tuple of tensors, or a list of samples"
    other = isinstance(data, dict | str | bytes | set | frozenset)
    require(not other, argument, "must be an ordered collection of samples", type(data).__name__, remedy)


def _check_tensors(argument: str, tensors: Any, fewest: int) -> int:
    kinds = f"{type(tensors).__name__} of {', '.join(type(part).__name__ for part in tensors)}"
    usable = isinstance(tensors, tuple) and all(_is_column(part) for part in tensors)
    remedy = "use torch.as_tensor, and put () around them"
    bound = "must be a tuple of tensors or numeric arrays, each with a dimension of samples"
    require(usable, argument, bound, kinds, remedy)
    enough = len(tensors) >= fewest
    require(enough, argument, "must be two tensors or more", kinds, "give inputs, then the target")
    sizes = [len(part) for part in tensors]
    bound = "must be tensors of equal first dimension"
    require(len(set(sizes)) == 1, argument, bound, sizes, "each has one entry per sample")
    return sizes[0]


def _is_column(part: Any) -> bool:
    import numpy as np
    import torch

    if not isinstance(part, torch.Tensor | np.ndarray) or not part.ndim:
        return False
    if isinstance(part, np.ndarray):
        try:
            torch.from_numpy(np.empty(0, part.dtype))
        except TypeError:  # strings, objects, records
            return False
        return all(stride >= 0 for stride in part.strides)
    return True


TENSOR_WORDS = ("column", "row", "vocabulary", "heads")
"""How a tensor plan may split a layer."""


def check_tensor_plan(plan: object) -> None:
    if plan is None:
        return
    bound, remedy = (
        "must be a dictionary that maps layers to kinds of splits",
        'write {"blocks.*.up": "column"}, or omit it',
    )
    require(isinstance(plan, Mapping) and len(plan) > 0, "tensor_plan", bound, plan, remedy)
    assert isinstance(plan, Mapping)
    for layer, word in plan.items():
        require(isinstance(layer, str), "tensor_plan", "must name layers", layer, remedy)
        if word not in TENSOR_WORDS:
            raise UnknownNameError("tensor_plan", str(word), TENSOR_WORDS)
