"""Metrics that are updated batch by batch, so that the outputs of all batches need not be stored.

A metric is any object with `update(outputs, targets)` and `compute()`, such as those of torchmetrics. Each evaluation
uses a new metric: a copy of the object in the task, or a new object if the task has a class. A named metric is computed
here as a mean over batches, weighted by elements, or by samples if it is the task's loss. The contribution of a batch
is two numbers, so ranks can share the batches. A plain function of outputs and targets is called once, with the outputs
and targets of all samples.
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
from paceline.task.calls import own_loss
from paceline.task.metrics import accuracy, mae, mse, value_of


class Meter(Protocol):
    """A metric of one evaluation."""

    def update(self, outputs: Any, targets: Any) -> object: ...

    def compute(self) -> Any: ...


class NamedMeter(ABC):
    """A metric that is the sum of contributions of batches. Equal contributions in the same order give bit-identical
    results.
    """

    @abstractmethod
    def part(self, outputs: Any, targets: Any) -> tuple[float, float]:
        """Return the contribution of one batch. The metric itself is not changed."""

    @abstractmethod
    def add(self, value: float, weight: float) -> None:
        """Add a contribution that `part` returned on this or another rank."""

    def update(self, outputs: Any, targets: Any) -> None:
        self.add(*self.part(outputs, targets))

    @abstractmethod
    def compute(self) -> float: ...


def meter_of(name: str, given: Any, loss: Callable[[Any, Any], Any] | None = None) -> Meter:
    """Return a new metric for one evaluation. Some named metrics use the task's `loss`."""
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
        raise ConfigurationError(name, "must return a metric if it takes no argument", made, remedy)
    meter: Meter = made
    return meter


def _fresh(meter: Any) -> Meter:
    if hasattr(meter, "reset"):
        meter.reset()
    fresh: Meter = meter
    return fresh


def _takes_nothing(given: Callable[..., Any]) -> bool:
    """Return whether a callable is a factory of metrics instead of a metric."""
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # it has no signature
        return False
    return not _binds(signature, None, None) and _binds(signature)


def _binds(signature: inspect.Signature, *args: None) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def named_meter(name: str, loss: Callable[[Any, Any], Any] | None = None) -> NamedMeter:
    """Return a new metric, given one of `METRIC_NAMES`."""
    if name == "accuracy":
        return _Share()
    if name in ("loss", "perplexity"):
        finish = _exp if name == "perplexity" else float
        return _Mean(loss, _samples, finish) if loss is not None else _MeanOfOwnLoss(finish)
    if name == "rmse":
        return _Mean(partial(mse, called="rmse"), torch.numel, math.sqrt)
    return _Mean({"mae": mae, "mse": mse}[name], torch.numel, float)


class _Share(NamedMeter):
    """Accuracy. It counts hits, so that the result is exact for any division into batches."""

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
    """Weighted mean of a function's values. `weight` returns the weight of a batch; `finish` is applied to the mean."""

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
        # With this formula, the mean of a single batch is exactly the function's value.
        self._mean += (value - self._mean) * (weight / self._total) if self._total else 0.0

    def compute(self) -> float:
        return self._finish(self._mean)


class _MeanOfOwnLoss(_Mean):
    """Mean loss of a model that computes its own loss. The loss is in the outputs, so all outputs are needed, not
    `logits`.
    """

    takes_all_outputs = True

    def __init__(self, finish: Callable[[float], float]) -> None:
        super().__init__(lambda outputs, _targets: own_loss(outputs), _samples, finish)


def _samples(targets: Any) -> int:
    """Return the number of samples in a batch with these targets."""
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
    """Metric from a function of all outputs and targets."""

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
    """Concatenate the tensors of several batches: by key in dictionaries, by position in tuples and lists."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(pieces) if first.ndim else torch.stack(pieces)
    if isinstance(first, Mapping):
        return {key: concatenate([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, tuple | list):
        columns = [concatenate(list(column)) for column in zip(*pieces, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    return None if first is None else pieces
