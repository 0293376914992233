"""Metrics that are given the outputs of one batch after the other, so that not all of them have to be kept.

Whatever has `update(outputs, targets)` and `compute()` is such a metric; those of torchmetrics are. Each evaluation has
a fresh one: a copy of the object that the task was given, or what its class makes. A metric that the task names is made
one here: of the batches' values, each counted by its elements or, where it is the task's loss, by its samples. What a
batch adds to it is two numbers, so that ranks can share the batches. A plain function of outputs and targets is given
those of all samples at once.
"""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.errors import ConfigurationError
from paceline.metrics import accuracy, mae, mse, value_of
from paceline.replica.calls import own_loss

__all__ = ["Meter", "NamedMeter", "concatenate", "meter_of", "named_meter"]


class Meter(Protocol):
    """A metric of one evaluation."""

    def update(self, outputs: Any, targets: Any) -> object: ...

    def compute(self) -> Any: ...


class NamedMeter(ABC):
    """A metric that adds up what it is told of each batch. The same parts in the same order give the same bits."""

    @abstractmethod
    def part(self, outputs: Any, targets: Any) -> tuple[float, float]:
        """What one batch adds to the metric. The metric itself is not changed."""

    @abstractmethod
    def add(self, value: float, weight: float) -> None:
        """Add what `part` gave, here or on another rank."""

    def update(self, outputs: Any, targets: Any) -> None:
        self.add(*self.part(outputs, targets))

    @abstractmethod
    def compute(self) -> float: ...


def meter_of(name: str, given: Any, loss: Callable[[Any, Any], Any] | None = None) -> Meter:
    """A fresh metric for one evaluation. `loss` is the task's, of which some metrics by name are made."""
    if isinstance(given, str):
        return named_meter(given, loss)
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


def named_meter(name: str, loss: Callable[[Any, Any], Any] | None = None) -> NamedMeter:
    """A fresh metric of one of `METRIC_NAMES`."""
    if name == "accuracy":
        return _Share()
    if name in ("loss", "perplexity"):
        finish = _exp if name == "perplexity" else float
        return _Mean(loss, _samples, finish) if loss is not None else _MeanOfOwnLoss(finish)
    if name == "rmse":
        return _Mean(partial(mse, called="rmse"), torch.numel, math.sqrt)
    return _Mean({"mae": mae, "mse": mse}[name], torch.numel, float)


class _Share(NamedMeter):
    """Accuracy. It is counted, so that the parts give the very number that the whole would."""

    def __init__(self) -> None:
        self._hits = self._count = 0.0  # whole numbers

    def part(self, outputs: Any, targets: Any) -> tuple[float, float]:
        share, count = value_of(accuracy, outputs, targets), targets.numel()
        return float(round(share * count)), float(count)

    def add(self, value: float, weight: float) -> None:
        self._hits += value
        self._count += weight

    def compute(self) -> float:
        return self._hits / self._count


class _Mean(NamedMeter):
    """The mean of a function's values, each weighted by what the targets of its batch count; then finished."""

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        weight: Callable[[Any], int],
        finish: Callable[[float], float],
    ) -> None:
        self._function = function
        self._weight = weight
        self._finish = finish
        self._mean = 0.0
        self._total = 0.0  # a whole number

    def part(self, outputs: Any, targets: Any) -> tuple[float, float]:
        return value_of(self._function, outputs, targets), float(self._weight(targets))

    def add(self, value: float, weight: float) -> None:
        self._total += weight
        # So that the value of a single batch is the very number that the function gives.
        self._mean += (value - self._mean) * (weight / self._total) if self._total else 0.0

    def compute(self) -> float:
        return self._finish(self._mean)


class _MeanOfOwnLoss(_Mean):
    """Where the model computes its loss itself: the loss is in its outputs, from which `logits` must not be taken."""

    takes_all_outputs = True

    def __init__(self, finish: Callable[[float], float]) -> None:
        super().__init__(lambda outputs, _targets: own_loss(outputs), _samples, finish)


def _samples(targets: Any) -> int:
    """How many there are in a batch with these targets."""
    if isinstance(targets, Mapping):
        targets = list(targets.values())
    if isinstance(targets, tuple | list):
        return _samples(targets[0]) if targets and isinstance(targets[0], Tensor) else len(targets)
    return len(targets) if isinstance(targets, Tensor) and targets.ndim else 1


def _exp(mean: float) -> float:
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


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
