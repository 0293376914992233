"""Callbacks on the metric: end the run when it no longer improves, or keep the best model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.callbacks.calling import STOP, Stop
from paceline.errors import ConfigurationError
from paceline.runs.run import Record, Run

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.task.task import Task

BETTER = ("higher", "lower")


@dataclass(slots=True, kw_only=True)
class EarlyStopping:
    """Ends the run after `patience` evaluations in a row without an improvement of more than `min_delta`."""

    patience: int = 3
    min_delta: float = 0.0
    better: str | None = None
    """Whether "higher" or "lower" values are better. If None, the task decides."""
    best: float = field(init=False, default=math.nan)
    waited: int = field(init=False, default=0)
    """Evaluations since the best one."""
    _sign: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        if not isinstance(self.patience, int) or isinstance(self.patience, bool) or self.patience < 1:
            raise ConfigurationError("patience", "must be a whole number of at least 1", self.patience)
        if not 0 <= self.min_delta < math.inf:
            bound = "must be at least 0, and finite"
            raise ConfigurationError("min_delta", bound, self.min_delta, "0 accepts any improvement")
        _check_better(self.better)

    def on_begin(self, task: Task) -> None:
        self.best, self.waited, self._sign = math.nan, 0, _sign(task, self.better, "EarlyStopping")

    def on_evaluate(self, record: Record, state: object) -> Stop | None:
        assert record.metric is not None
        if math.isnan(self.best) or self._sign * (record.metric - self.best) > self.min_delta:
            self.best, self.waited = record.metric, 0
            return None
        self.waited += 1
        return STOP if self.waited >= self.patience else None


@dataclass(slots=True, kw_only=True)
class KeepBest:
    """Keeps the state dict of the model with the best metric: `run.best_state` and `run.best_metric`."""

    better: str | None = None
    """Whether "higher" or "lower" values are better. If None, the task decides."""
    metric: float = field(init=False, default=math.nan)
    step: int = field(init=False, default=0)
    state: dict[str, Tensor] = field(init=False, default_factory=dict, repr=False)
    wants_state: bool = field(init=False, default=True, repr=False)
    _sign: int = field(init=False, default=1, repr=False)

    def __post_init__(self) -> None:
        _check_better(self.better)

    def on_begin(self, task: Task) -> None:
        self.metric, self.step, self.state = math.nan, 0, {}
        self._sign = _sign(task, self.better, "KeepBest")

    def on_evaluate(self, record: Record, state: dict[str, Tensor] | None) -> None:
        assert record.metric is not None
        assert state is not None
        if math.isnan(self.metric) or self._sign * (record.metric - self.metric) > 0:
            self.metric, self.step, self.state = record.metric, record.step, state

    def on_end(self, run: Run | None) -> None:
        if run is not None and self.state:
            run.best_state, run.best_metric = self.state, self.metric


def _check_better(better: object) -> None:
    if better is not None and better not in BETTER:
        raise ConfigurationError(
            "better", 'must be "higher" or "lower"', better, "None to use the task's direction"
        )


def _sign(task: Task, better: str | None, name: str) -> int:
    if task.metric is None:
        remedy = "give the task test=… and metric=…"
        raise ConfigurationError("callbacks", f"need a metric for {name}", None, remedy)
    return -1 if (better or task.better_way) == "lower" else 1
