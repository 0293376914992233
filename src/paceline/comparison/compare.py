"""The front door of comparisons."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from paceline.budget import check_length, count_updates, count_whole_batches
from paceline.clusters.job import Cluster
from paceline.clusters.local.local import Local
from paceline.comparison.alone import as_seen_alone
from paceline.comparison.baselines import baseline_trainers
from paceline.comparison.comparison import Comparison
from paceline.comparison.contender import Contender, Trainer, Watcher
from paceline.comparison.entry import YARDSTICK
from paceline.comparison.names import named_strategies
from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.run import Run
from paceline.strategies import parse
from paceline.task import Task
from paceline.training import check_seed, roles_of, train

__all__ = ["compare"]

EVALUATIONS = 40
"""More than in a single run: how soon a target is reached is known no better than how often one looks."""


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
) -> Comparison:
    """Train a task with several strategies on one cluster, each from the same seed and start.

    Each run is `epochs` passes over the data long (10 if neither is given), as of `pl.train`, so that a strategy whose
    updates take fewer samples makes more of them; or each is `steps` updates long. With `repeat`, round n of
    every strategy has the seed `seed + n - 1`, and no round begins before the one before is complete.

    `single` is run too, on one worker, for the others' speed-up, unless `baseline` is false. On a cluster with a given
    `compute` its gradients take as many times as long as there are workers, for they are of whole batches.

    `against` names baselines: "ddp" is PyTorch's DistributedDataParallel. `target` replaces the task's. Runs go on
    after they have reached it, so that they can be compared to the end, unless `stop_at_target` is given. The metric is
    evaluated about 40 times a run by default.

    Everything is checked before the first run. A strategy that fails then does not end the comparison.
    """
    where: Cluster = Local() if cluster is None else cluster
    if not hasattr(where, "run"):
        raise ConfigurationError("cluster", "must be a cluster", where, "such as pl.Local(workers=4)")
    aimed = _with_target(task, target, where)
    _check_rounds(repeat, seed, evaluate_every)
    named = named_strategies(strategies, where.workers)
    if baseline and YARDSTICK not in named:
        named = {YARDSTICK: YARDSTICK, **named}
    baselines = baseline_trainers(against, where)
    words = {"evaluate_every": evaluate_every, "stop_at_target": stop_at_target}
    contenders = _contenders(aimed, named, baselines, where, steps, epochs, seed, words)
    for number in range(1, repeat + 1):
        for contender in (contender for contender in contenders if contender.error is None):
            contender.run(aimed, where, seed=seed + number - 1, round=number, rounds=repeat, watch=progress)
    return Comparison(entries=tuple(contender.entry() for contender in contenders))


def _contenders(
    task: Task,
    named: dict[str, str | Strategy],
    baselines: dict[str, Trainer],
    cluster: Cluster,
    steps: int | None,
    epochs: float | None,
    seed: int,
    words: dict[str, Any],
) -> list[Contender]:
    check_length(steps, epochs)
    lengths = _lengths(task, named, baselines, cluster, steps, epochs, seed)
    ours = {name: _trainer(strategy, alone=name == YARDSTICK) for name, strategy in named.items()}
    return [
        Contender(name=name, train=trainer, words=_words(task, lengths[name], words))
        for name, trainer in (ours | baselines).items()
    ]


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
    """The updates of each. Of baselines, each takes a whole batch."""
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
    if getattr(cluster, "math", "real") == "none":
        if target is not None:
            raise ConfigurationError(
                "target", "needs mathematics", target, 'use math="real", or leave it out'
            )
        return dataclasses.replace(task, target=None)
    return task if target is None else dataclasses.replace(task, target=target)


def _check_rounds(repeat: int, seed: int, evaluate_every: int | None) -> None:
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
        raise ConfigurationError("repeat", "must be a whole number of at least 1", repeat)
    if evaluate_every is not None and (not isinstance(evaluate_every, int) or evaluate_every < 1):
        raise ConfigurationError("evaluate_every", "must be a whole number of at least 1", evaluate_every)
    check_seed(seed)
    check_seed(seed + repeat - 1)
