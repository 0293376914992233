"""`pl.compare`, the entry point of comparisons."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.analysis.comparison.alone import as_seen_alone
from paceline.analysis.comparison.comparison import Comparison
from paceline.analysis.comparison.contender import Contender, Trainer, Watcher
from paceline.analysis.comparison.entry import YARDSTICK
from paceline.analysis.comparison.names import named_strategies
from paceline.analysis.comparison.saved import SavedComparison
from paceline.clusters.base.checks import check_cluster, check_evaluate_every, check_flag, check_progress
from paceline.clusters.base.job import Cluster
from paceline.clusters.local.local import Local
from paceline.clusters.simulated.measured_once import measuring_once
from paceline.context import Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.run_length import check_length, count_updates, count_whole_batches
from paceline.runs.run import Run
from paceline.strategies import parse
from paceline.system import interrupts
from paceline.task.task import Task
from paceline.training import check_seed, roles_of, train

EVALUATIONS = 40
"""Evaluations of a run. More than in `pl.train`, because they limit the resolution of the time to the target."""

BASELINES: Mapping[str, tuple[str, str]] = {
    "ddp": ("paceline.baselines.ddp", "train_with_ddp"),
    "spark": ("paceline.baselines.spark", "train_with_spark"),
}
"""Module and function of each baseline. The function has the arguments of `pl.train`."""


@interrupts.recorded()
def compare(
    task: Task,
    strategies: str | Strategy | Sequence[str | Strategy],
    cluster: Cluster | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    repeat: int = 1,
    target: float | None = None,
    against: str | Sequence[str] = (),
    baseline: bool = True,
    evaluate_every: int | None = None,
    stop_at_target: bool = False,
    progress: Watcher | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Comparison:
    """Train a task with several strategies on one cluster, with the same seed and the same initial weights.

    Each run has `epochs` passes over the data (10 if neither is given), as in `pl.train`. A strategy that uses fewer
    samples per update makes more updates. With `steps`, each run has this number of updates. With `repeat`, round n of
    every strategy uses the seed `seed + n - 1`, and a round begins when the previous one is complete.

    `single` is run too, on one worker, as the baseline for the speed-up, unless `baseline` is false. On a cluster with
    a given `compute`, its gradients take `workers` times as long, because they use whole batches.

    `against` names baselines: "ddp" is PyTorch's DistributedDataParallel, "spark" is MapReduce on Spark. `target`
    replaces the task's target. Runs continue after they have reached it, so that final results can be compared, unless
    `stop_at_target` is given. The metric is evaluated about 40 times per run by default.

    A simulation without `compute` measures the task's gradients once, for all strategies.

    With a folder as `out` each run is saved there when it ends, as by `Comparison.save`. With `resume` the runs in that
    folder are used, and the others are made.

    All arguments are checked before the first run. If a strategy fails later, the comparison continues.
    """
    where: Cluster = Local() if cluster is None else cluster
    check_cluster(where)
    check_progress(progress)
    check_flag("baseline", baseline)
    check_flag("stop_at_target", stop_at_target)
    saved = _saved(out, resume)
    aimed = _with_target(task, target, where)
    _check_rounds(repeat, seed, evaluate_every)
    named = named_strategies(strategies, where.workers)
    if baseline and YARDSTICK not in named:
        named = {YARDSTICK: YARDSTICK, **named}
    baselines = baseline_trainers(against, where)
    words = {"evaluate_every": evaluate_every, "stop_at_target": stop_at_target}
    check_length(steps, epochs)
    lengths = _lengths(aimed, named, baselines, where, steps, epochs, seed)
    ours = {name: _trainer(strategy, alone=name == YARDSTICK) for name, strategy in named.items()}
    contenders = [
        Contender(name=name, train=trainer, words=_words(aimed, lengths[name], words))
        for name, trainer in (ours | baselines).items()
    ]
    known = saved.load() if saved is not None and resume else {}
    for contender in contenders:
        contender.take(known.get(contender.name, ()), where, seed=seed, rounds=repeat, watch=progress)
    where = measuring_once(where)
    for number in range(1, repeat + 1):
        for contender in contenders:
            if contender.error is None and len(contender.runs) < number:
                contender.run(
                    aimed, where, seed=seed + number - 1, round=number, rounds=repeat, watch=progress
                )
                if saved is not None:
                    saved.save([each.entry() for each in contenders if each.has_ended])
    return Comparison(entries=tuple(contender.entry() for contender in contenders))


def _saved(out: str | os.PathLike[str] | None, resume: bool) -> SavedComparison | None:
    check_flag("resume", resume)
    if resume and out is None:
        raise ConfigurationError(
            "resume", "needs out", resume, "give the folder of the interrupted comparison"
        )
    return None if out is None else SavedComparison(Path(out))


def _trainer(strategy: str | Strategy, *, alone: bool) -> Trainer:
    def train_with_it(task: Task, cluster: Cluster, **words: Any) -> Run:
        return train(task, strategy, as_seen_alone(cluster) if alone else cluster, **words)

    return train_with_it


def _lengths(
    task: Task,
    named: dict[str, str | Strategy],
    baselines: dict[str, Trainer],
    cluster: Cluster,
    steps: int | None,
    epochs: float | None,
    seed: int,
) -> dict[str, int]:
    """Return the number of updates of each contender. An update of a baseline uses a whole batch."""
    if steps is None:  # built once: a factory may read gigabytes
        task = dataclasses.replace(task, data=task.build_data())
    lengths = {}
    for name, words in named.items():
        strategy = parse(words)
        roles = roles_of(strategy, cluster)
        lengths[name] = count_updates(task, strategy, roles, steps=steps, epochs=epochs, seed=seed)
    return lengths | {name: count_whole_batches(task, steps=steps, epochs=epochs) for name in baselines}


def _words(task: Task, steps: int, words: dict[str, Any]) -> dict[str, Any]:
    every = words["evaluate_every"]
    if every is None and task.metric is not None:
        every = max(1, steps // EVALUATIONS)
    return {**words, "steps": steps, "evaluate_every": every}


def _with_target(task: Task, target: float | None, cluster: Cluster) -> Task:
    if not isinstance(task, Task):
        raise ConfigurationError("task", "must be a pl.Task", task, "see pl.load_task for tasks in files")
    if cluster.math == "none":
        if target is not None:
            raise ConfigurationError("target", "needs tensor math", target, 'use math="real", or omit it')
        return dataclasses.replace(task, target=None)
    return task if target is None else dataclasses.replace(task, target=target)


def _check_rounds(repeat: int, seed: int, evaluate_every: int | None) -> None:
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
        raise ConfigurationError("repeat", "must be a whole number of at least 1", repeat)
    check_evaluate_every(evaluate_every)
    check_seed(seed)
    check_seed(seed + repeat - 1)


def baseline_trainers(names: str | Sequence[str], cluster: Cluster) -> dict[str, Trainer]:
    """Return the training function of each of these baselines."""
    chosen = [names] if isinstance(names, str) else list(names)
    unknown = next((name for name in chosen if name not in BASELINES), None)
    if unknown is not None:
        raise UnknownNameError("against", str(unknown), BASELINES)
    if chosen:
        _check_cluster(cluster)
    return {name: getattr(importlib.import_module(BASELINES[name][0]), BASELINES[name][1]) for name in chosen}


def _check_cluster(cluster: Cluster) -> None:
    if not isinstance(cluster, Local) or not isinstance(cluster.link, str) or cluster.compute is not None:
        remedy = "omit against, or use pl.Local without compute and without an emulated link"
        raise ConfigurationError(
            "against", "needs local workers, without an emulated link", str(cluster), remedy
        )
