"""The front door."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from paceline.budget import count_updates
from paceline.callbacks.calling import Callbacks
from paceline.clusters.job import Cluster, Job, Watch
from paceline.clusters.local.local import Local
from paceline.clusters.outcome import assemble
from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.forked import do_without_lost_threads
from paceline.going_on import KeepingWords, kept, with_keeping
from paceline.replica.autocast import in_force, suspended
from paceline.replica.compiling import is_compiled
from paceline.replica.portable import portable
from paceline.run import Progress, Run
from paceline.strategies import describe, parse, spell
from paceline.task import Task

__all__ = ["check_seed", "roles_of", "train"]

_log = logging.getLogger("paceline")

EVALUATIONS = 20
_MUCH = 0.1


def train(
    task: Task,
    strategy: str | Strategy = "all-reduce",
    cluster: Cluster | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    evaluate_every: int | None = None,
    stop_at_target: bool = False,
    progress: Callable[[Progress], None] | None = None,
    callbacks: Sequence[Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | str | None = None,
    resume: bool | str = False,
    keep: int = 2,
    keep_best: bool = False,
) -> Run:
    """Train a task's model with a strategy on a cluster.

    The run is `steps` updates long, or `epochs` passes over the data (10 if neither is given), counted in samples: an
    update of some strategies takes a part of a batch, or several passes, and a run has at least one. The metric is
    evaluated every `evaluate_every` steps (about 20 times a run by default) and at the end; with `stop_at_target` the
    run ends at the step after the one that reached the task's target. `progress` is called about ten times a second.
    `callbacks` see every record, one after the other, and may end the run: see `pl.callbacks`.

    With a folder as `checkpoint` the run is written there every `checkpoint_every` steps, or after such a time (5min by
    default), and at its end; the last `keep` checkpoints stay, and the best with `keep_best`. With `resume` it goes on
    from the newest, if there is one ("must": refuse if there is none; "newest-good": pass over damaged ones).
    """
    if not isinstance(task, Task):
        raise ConfigurationError("task", "must be a pl.Task", task, "see pl.load_task for tasks in files")
    do_without_lost_threads()
    chosen = parse(strategy)
    where: Cluster = Local() if cluster is None else cluster
    if not hasattr(where, "run"):
        raise ConfigurationError("cluster", "must be a cluster", where, "such as pl.Local(workers=4)")
    check_seed(seed)
    words = KeepingWords(
        checkpoint=checkpoint, every=checkpoint_every, resume=resume, keep=keep, keep_best=keep_best
    )
    watchers = Callbacks(callbacks)
    roles = roles_of(chosen, where)
    count = count_updates(task, chosen, roles, steps=steps, epochs=epochs, seed=seed)
    every = task.schedule_every
    if every == "epoch":
        every = count_updates(task, chosen, roles, steps=None, epochs=1, seed=seed)
    with _device(where):
        module = task.build_model(seed)
    _check_has_data(module, where)
    job = Job(
        strategy=chosen,
        roles=roles,
        seed=seed,
        name=spell(strategy) if isinstance(strategy, str) else describe(chosen),
        task=dataclasses.replace(task, model=portable(task.model, module), schedule_every=every),
        steps=count,
        evaluate_every=_check_evaluate_every(task, evaluate_every, count),
        stop_at_target=stop_at_target,
        autocast=in_force(),
        compiles=task.compile or is_compiled(module),
        watch=Watch(
            steps=watchers.want_steps, evaluations=watchers.want_evaluations, state=watchers.want_state
        ),
    )
    job = with_keeping(job, words, where, module)
    with suspended(), kept(job, where):
        run = _watched_run(job, where, module, progress, watchers)
    if epochs is not None and not stop_at_target and not watchers:
        _compare_length(run, epochs)
    return run


def _watched_run(
    job: Job,
    cluster: Cluster,
    module: nn.Module,
    progress: Callable[[Progress], None] | None,
    callbacks: Callbacks,
) -> Run:
    if not callbacks:
        return assemble(job, str(cluster), cluster.run(job, progress), module)
    assert job.task is not None
    callbacks.begin(job.task)
    run: Run | None = None
    try:
        run = assemble(job, str(cluster), cluster.run(job, progress, callbacks.consult), module)
    finally:
        callbacks.end(run)
    return run


def roles_of(strategy: Strategy, cluster: Cluster) -> tuple[str, ...]:
    """The role of each rank. Where the number of processes is given, as many are workers as leaves enough to serve."""
    processes: int | None = getattr(cluster, "ranks", None)
    if processes is None:
        return tuple(strategy.roles(cluster.workers))
    for workers in range(processes, 0, -1):
        roles = tuple(strategy.roles(workers))
        if len(roles) == processes:
            return roles
    fewest = len(strategy.roles(1))
    bound = f"must be enough for {describe(strategy)}, which needs {fewest} for one worker"
    raise ConfigurationError("processes", bound, processes, "launch more")


def _compare_length(run: Run, epochs: float) -> None:
    """Say so where a run saw many more samples than it was asked for, or many fewer."""
    seen = run.epochs
    if seen is not None and abs(seen - epochs) > max(_MUCH * epochs, seen / run.steps):
        _log.warning(
            "%s saw its samples %.3g times in %d updates, not %g times", run.strategy, seen, run.steps, epochs
        )


def _device(cluster: Cluster) -> contextlib.AbstractContextManager[object]:
    """Where no mathematics is done, a model needs no memory."""
    if getattr(cluster, "math", "real") == "none":
        return torch.device("meta")
    return contextlib.nullcontext()


def _check_has_data(module: nn.Module, cluster: Cluster) -> None:
    """Refuse to compute with a model of shapes only."""
    if getattr(cluster, "math", "real") != "none" and any(p.is_meta for p in module.parameters()):
        bound = 'must be pl.Simulated(math="none") for a model of shapes only, such as those of pl.models'
        remedy = 'write pl.Simulated(workers=4, math="none", device=pl.devices.A100)'
        raise ConfigurationError("cluster", bound, cluster, remedy)


def check_seed(seed: int) -> int:
    """The seed, if it is one."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ConfigurationError("seed", "must be a whole number from 0 to 4294967295", seed)
    return seed


def _check_evaluate_every(task: Task, evaluate_every: int | None, steps: int) -> int:
    if evaluate_every is None:
        return max(1, steps // EVALUATIONS) if task.metric is not None else 0
    if not isinstance(evaluate_every, int) or evaluate_every < 1:
        raise ConfigurationError("evaluate_every", "must be a whole number of at least 1", evaluate_every)
    return evaluate_every
