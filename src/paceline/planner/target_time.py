"""Estimates of the time to a task's target, by short simulations with real mathematics.

Strategies that give the weights of `single` need as many steps as it does: it is trained once for each seed. Other
strategies are simulated, because their updates depend on which worker is quicker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.times import Constant
from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError, PacelineError
from paceline.planner.entry import Entry, TargetTime
from paceline.planner.sizing import PlannedCluster
from paceline.run_length import count_updates
from paceline.strategies import parse
from paceline.task.task import Task
from paceline.training import roles_of, train

SEEDS = 2
_EVALUATIONS = 40
_PATIENCE = 2.0
"""A simulation is given up when it takes this many times the best time so far."""
_OF_FAMILY = 3
"""Configurations that are simulated for each strategy that does not equal `single`."""
_REPEATED = 4
"""Configurations that are simulated with every seed. The others are simulated with the first one."""

Tell = Callable[[str], None]


def evaluation_interval(steps: int) -> int:
    """Return the steps between two evaluations of a run to the target."""
    return max(1, steps // _EVALUATIONS)


def check_target(task: Task) -> None:
    """Raise an error if the time to the target cannot be estimated."""
    if task.target is None or task.metric is None:
        remedy = 'write Task(metric=…, target=0.95), or goal="step"'
        raise ConfigurationError("target", 'must be given with goal="time to target"', task.target, remedy)
    module = task.build_model(0)
    if any(each.is_meta for each in module.parameters()):
        remedy = 'use goal="step"'
        bound = 'must have weights with goal="time to target"'
        raise ConfigurationError("model", bound, "shapes only", remedy)


class TargetTimes:
    """Estimates for one task on one cluster."""

    def __init__(self, task: Task, cluster: PlannedCluster, epochs: float, seed: int, tell: Tell) -> None:
        """A run of more than `epochs` passes over the data is not simulated to its end."""
        self._task, self._cluster, self._epochs, self._seed = task, cluster, epochs, seed
        self._tell = tell
        self._best_s = math.inf
        self._reached: dict[tuple[str, int, int], float | str] = {}
        self.missed: list[str] = []
        """Entries that did not reach the target, with the reason."""
        self.skipped = 0
        """Number of entries that were not simulated."""

    def estimate(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries, with estimates where the target was reached."""
        exact = [entry for entry in entries if entry.equals_single]
        others = [entry for entry in entries if not entry.equals_single]
        batches = self._batches_of_single() if exact else []
        known = [dataclasses.replace(entry, target=_scaled(batches, entry)) for entry in exact]
        self._best_s = min((entry.target.seconds for entry in known if entry.target), default=math.inf)
        bound_s = min((entry.batch_seconds for entry in exact), default=math.inf)
        # The fastest batches first: when they reach the target, slower runs can be given up sooner.
        chosen = sorted(self._chosen(others, bound_s), key=lambda entry: entry.batch_seconds)
        first = [self._simulated(entry, [self._seed], patience=_PATIENCE) for entry in chosen]
        first.sort(key=_seconds)
        again = [each for each in first[:_REPEATED] if each.target is not None]
        repeated = [self._simulated(entry, range(self._seed, self._seed + SEEDS)) for entry in again]
        simulated = {(each.strategy, each.workers) for each in chosen}
        rest = [each for each in others if (each.strategy, each.workers) not in simulated]
        self.skipped = len(rest)
        return [*known, *repeated, *first[len(again) :], *rest]

    def _chosen(self, entries: Sequence[Entry], bound_s: float) -> list[Entry]:
        """Return entries with faster batches than `single` and its equals; of each strategy the best few."""
        faster = [entry for entry in entries if entry.batch_seconds < bound_s]
        faster.sort(key=lambda entry: (entry.family, entry.batch_seconds))
        return [
            entry
            for _, family in groupby(faster, key=lambda entry: entry.family)
            for entry in _spread(_distinct(family))
        ]

    def _batches_of_single(self) -> list[float]:
        """Return the steps that `single` needs, for each seed. Fewer if the target was not reached."""
        one = Simulated(workers=1, compute=Constant(1.0))
        found = []
        for seed in range(self._seed, self._seed + SEEDS):
            self._tell(f"single with seed {seed}, for its steps to the target")
            reached = self._seconds_to_target("single", self._task, one, seed)
            if isinstance(reached, float):
                found.append(reached)
        if len(found) < SEEDS:
            self.missed.append("single and all strategies with its weights")
            return []
        return found

    def _simulated(self, entry: Entry, seeds: Iterable[int], patience: float = math.inf) -> Entry:
        """Return the entry with its time to the target. A run is given up at `patience` times the best time so far."""
        seconds = []
        for seed in seeds:
            key = entry.strategy, entry.workers, seed
            if key not in self._reached:
                self._tell(f"{entry}, to the target")
                cluster = dataclasses.replace(self._cluster.resized(entry.workers), math="real")
                limit_s = patience * self._best_s
                most = limit_s / entry.prediction.step_seconds if entry.prediction.step_seconds else math.inf
                self._reached[key] = self._seconds_to_target(entry.strategy, self._task, cluster, seed, most)
            reached = self._reached[key]
            if not isinstance(reached, float):
                self.missed.append(f"{entry} ({reached})")
                return dataclasses.replace(entry, target=None)
            seconds.append(reached)
        mean_s = sum(seconds) / len(seconds)
        self._best_s = min(self._best_s, mean_s)
        target = TargetTime(
            seconds=mean_s,
            low=min(seconds),
            high=max(seconds),
            seeds=len(seconds),
            batches=mean_s / entry.batch_seconds,
            first=seconds[0],
        )
        return dataclasses.replace(entry, target=target)

    def _seconds_to_target(
        self, strategy: str, task: Task, cluster: Simulated, seed: int, most: float = math.inf
    ) -> float | str:
        """Return the seconds to the target, or the reason that it was not reached. `most` limits the steps."""
        parsed = parse(strategy)
        steps = count_updates(
            task, parsed, roles_of(parsed, cluster), steps=None, epochs=self._epochs, seed=seed
        )
        try:
            run = train(
                task,
                parsed,
                cluster,
                steps=math.ceil(min(most, steps)),
                seed=seed,
                stop_at_target=True,
                evaluate_every=evaluation_interval(steps),
            )
        except PacelineError as error:
            return str(error).splitlines()[0]
        if run.seconds_to_target is not None:
            return run.seconds_to_target
        if most < steps:
            return (
                f"not reached in {format_seconds(run.seconds)}, when another one has reached it twice as soon"
            )
        return f"not reached in {self._epochs:g} epochs"


def _scaled(batches: Sequence[float], entry: Entry) -> TargetTime | None:
    if not batches:
        return None
    mean = sum(batches) / len(batches)
    each_s = entry.batch_seconds
    return TargetTime(
        seconds=mean * each_s,
        low=min(batches) * each_s,
        high=max(batches) * each_s,
        seeds=len(batches),
        batches=mean,
        first=batches[0] * each_s,
    )


def _seconds(entry: Entry) -> float:
    return math.inf if entry.target is None else entry.target.seconds


def _distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without those that take as long as another one: they do the same."""
    found: dict[tuple[int, float], Entry] = {}
    for entry in entries:
        found.setdefault((entry.workers, float(f"{entry.batch_seconds:.4g}")), entry)
    return list(found.values())


def _spread(entries: Sequence[Entry]) -> list[Entry]:
    """Return a few entries from the fastest to the slowest."""
    if len(entries) <= _OF_FAMILY:
        return list(entries)
    places = {round(number * (len(entries) - 1) / (_OF_FAMILY - 1)) for number in range(_OF_FAMILY)}
    return [entries[place] for place in sorted(places)]
