"""Metrics that are given the outputs of one batch after the other, so that not all of them have to be kept.

Whatever has `update(outputs, targets)` and `compute()` is such a metric; those of torchmetrics are. Each evaluation has
a fresh one: a copy of the object that the task was given, or what its class makes. A metric that the task names is made
one here. A plain function of outputs and targets gets those of all samples, one after the other.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.errors import ConfigurationError
from paceline.metrics import metric_named, value_of

__all__ = ["Meter", "concatenate", "meter_of"]


class Meter(Protocol):
    """A metric of one evaluation."""

    def update(self, outputs: Any, targets: Any) -> object: ...

    def compute(self) -> Any: ...


def meter_of(name: str, given: Any, loss: Callable[[Any, Any], Any] | None = None) -> Meter:
    """A fresh metric for one evaluation. `loss` is the task's, of which some metrics by name are made."""
    if isinstance(given, str):
        function = metric_named(given, loss)
        return _Share(function) if given in _SHARES else _Everything(function)
    is_meter = hasattr(given, "update") and hasattr(given, "compute")
    if is_meter and not isinstance(given, type):
        return _fresh(copy.deepcopy(given))
    if not is_meter and not _takes_nothing(given):
        return _Everything(given)
    made = given()
    if not hasattr(made, "update") or not hasattr(made, "compute"):
        remedy = "return an object with update(outputs, targets) and compute()"
        raise ConfigurationError(name, "must make a metric where it takes no argument", made, remedy)
    meter: Meter = made
    return meter


def _fresh(meter: Any) -> Meter:
    if hasattr(meter, "reset"):
        meter.reset()
    fresh: Meter = meter
    return fresh


def _takes_nothing(given: Callable[..., Any]) -> bool:
    """Whether it makes a metric, rather than being one."""
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # it does not say
        return False
    return not _binds(signature, None, None) and _binds(signature)


def _binds(signature: inspect.Signature, *args: None) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


_SHARES = ("accuracy",)
"""Metrics by name that are a share of the targets."""


class _Share:
    """Counted, so that the parts give the very number that the whole would."""

    def __init__(self, function: Callable[[Any, Any], float]) -> None:
        self._function = function
        self._hits = self._count = 0

    def update(self, outputs: Any, targets: Any) -> None:
        count = targets.numel()
        self._hits += round(self._function(outputs, targets) * count)
        self._count += count

    def compute(self) -> float:
        return self._hits / self._count


class _Everything:
    """A function of all outputs and targets."""

    def __init__(self, function: Callable[[Any, Any], float]) -> None:
        self._function = function
        self._outputs: list[Any] = []
        self._targets: list[Any] = []

    def update(self, outputs: Any, targets: Any) -> None:
        self._outputs.append(outputs)
        self._targets.append(targets)

    def compute(self) -> float:
        return value_of(self._function, concatenate(self._outputs), concatenate(self._targets))


def concatenate(pieces: list[Any]) -> Any:
    """The tensors of several batches as one: by key of dictionaries, by place of tuples and lists."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(pieces) if first.ndim else torch.stack(pieces)
    if isinstance(first, Mapping):
        return {key: concatenate([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, tuple | list):
        columns = [concatenate(list(column)) for column in zip(*pieces, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    return None if first is None else pieces
