"""Predictions of any strategy: by `pl.predict`, or by a short event simulation where that is not possible."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.errors import ConfigurationError, PacelineError
from paceline.planner.facts import facts_of
from paceline.planner.predict import predict
from paceline.planner.prediction import Parts, Prediction
from paceline.planner.sizing import PlannedCluster
from paceline.run_length import PartialBatches
from paceline.strategies import describe, parse
from paceline.strategies.shared.pipelining.program import SegmentedStrategy
from paceline.task.task import Task
from paceline.training import roles_of, train

_ROUNDS = 40
"""Global batches in an event simulation. A multiple of the periods that are tried."""
_ROUNDS_OF_STAGES = 4
_MOST_SIMULATED = 64
"""Ranks of an event simulation."""


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
        found = estimated(
            self._tasks[choice.recompute], parse(choice.strategy), self.cluster.resized(choice.workers)
        )
        if self._memory_bytes is not None:
            found = dataclasses.replace(found, device_bytes=self._memory_bytes)
        return found


def batches_per_update(strategy: Strategy, workers: int) -> float:
    """Return the global batches in an update."""
    return strategy.batches_per_update(workers) if isinstance(strategy, PartialBatches) else 1.0


def estimated(task: Task, strategy: Strategy, cluster: Simulated) -> Prediction:
    """Predict a step of a strategy on a cluster of any kind."""
    if cluster.device is not None:
        try:
            return predict(task, strategy, cluster)
        except ConfigurationError as error:
            if error.argument not in ("strategy", "cluster"):
                raise
    return simulated(task, strategy, cluster)


def simulated(task: Task, strategy: Strategy, cluster: Simulated) -> Prediction:
    """Simulate some steps, event by event, and return their means."""
    roles = roles_of(strategy, cluster)
    if len(roles) > _MOST_SIMULATED:
        bound = f"must be at most {_MOST_SIMULATED}, because pl.predict does not support {describe(strategy)} here"
        raise ConfigurationError("workers", bound, len(roles), "use fewer workers")
    is_cut = isinstance(strategy, SegmentedStrategy)
    rounds = _ROUNDS_OF_STAGES if is_cut or cluster.measures else _ROUNDS
    share = batches_per_update(strategy, sum(role != "server" for role in roles))
    without_target = dataclasses.replace(task, target=None, metric=None, test=None)
    run = train(without_target, strategy, cluster, steps=math.ceil(rounds / share))
    summary = run.trace.summary()
    shares = {part: summary.share(part) for part in ("compute", "communicate", "update")}
    idle = max(0.0, 1 - sum(shares.values()))
    step_s = run.step_seconds
    facts = facts_of(task)
    device = cluster.device
    return Prediction(
        step_seconds=step_s,
        parts=Parts(
            compute=shares["compute"] * step_s,
            communicate=shares["communicate"] * step_s,
            wait=0.0 if is_cut else idle * step_s,
            bubble=idle * step_s if is_cut else 0.0,
            update=shares["update"] * step_s,
        ),
        memory_bytes=max((rank.get("total", 0) for rank in run.memory), default=0),
        device_bytes=None if device is None or isinstance(device, str) else device.memory_bytes,
        batch_size=facts.batches.batch_size,
        tokens_per_sample=facts.tokens_per_sample,
    )
