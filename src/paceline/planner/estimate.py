"""Predictions of the configurations of a plan. Each is made once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from paceline.context import Strategy
from paceline.errors import PacelineError
from paceline.planner.predict import predicted
from paceline.planner.prediction import Prediction
from paceline.planner.sizing import PlannedCluster
from paceline.run_length import PartialBatches
from paceline.strategies import parse
from paceline.task.task import Task

GRADIENTS = 2_000
"""Gradients of a simulation with random times. Their mean has an error of a few per cent: a search compares many."""


class Choice(NamedTuple):
    """One configuration."""

    strategy: str
    workers: int
    recompute: bool


class Estimator:
    """Predictions for one task on one cluster. Each is made once."""

    def __init__(self, task: Task, cluster: PlannedCluster, memory_bytes: int | None) -> None:
        """`memory_bytes` replaces the memory of a device. None for the device's own limit."""
        self.task = task
        self.cluster = cluster
        self.count = 0
        self._memory_bytes = memory_bytes
        self._known: dict[Choice, Prediction | PacelineError] = {}
        self._tasks: Mapping[bool, Task] = {
            again: dataclasses.replace(task, recompute=again) for again in (False, True)
        }

    def batch_seconds(self, choice: Choice, prediction: Prediction) -> float:
        """Return the seconds in which as many samples are processed as in one batch of the task."""
        return prediction.step_seconds / batches_per_update(parse(choice.strategy), choice.workers)

    def prediction(self, choice: Choice) -> Prediction | PacelineError:
        """Return the prediction, or the reason that there is none."""
        if choice not in self._known:
            self.count += 1
            try:
                self._known[choice] = self._predicted(choice)
            except PacelineError as error:
                self._known[choice] = error
        return self._known[choice]

    def _predicted(self, choice: Choice) -> Prediction:
        task = self._tasks[choice.recompute]
        found = predicted(task, choice.strategy, self.cluster.resized(choice.workers), GRADIENTS)
        if self._memory_bytes is not None:
            found = dataclasses.replace(found, device_bytes=self._memory_bytes)
        return found


def batches_per_update(strategy: Strategy, workers: int) -> float:
    """Return the global batches in an update."""
    return strategy.batches_per_update(workers) if isinstance(strategy, PartialBatches) else 1.0
