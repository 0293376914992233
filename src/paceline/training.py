"""`pl.train`, the main entry point."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from paceline.callbacks.calling import Callbacks
from paceline.checkpoints.description import RunDescription
from paceline.checkpoints.ending import advice, checkpointing, time_limit
from paceline.checkpoints.generations import GenerationPlan
from paceline.checkpoints.model_state import model_state
from paceline.checkpoints.options import CheckpointOptions
from paceline.checkpoints.plan import plan_run
from paceline.clusters.base.checks import check_cluster, check_evaluate_every, check_flag, check_progress
from paceline.clusters.base.declarations import Declarations
from paceline.clusters.base.job import Cluster, Job, Watch
from paceline.clusters.base.outcome import assemble
from paceline.clusters.local.local import Local
from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.files.distributed_checkpoint import read_distributed_checkpoint
from paceline.model.autocast import of_precision, suspended
from paceline.model.compiling import is_compiled
from paceline.model.hooks.batch_norm import check_strategy_and_model
from paceline.model.portable import portable
from paceline.run_length import compare_length, count_updates, schedule_in_steps
from paceline.runs.run import Progress, Run
from paceline.strategies import describe, parse, spell
from paceline.strategies.registry.fp16 import check_fp16
from paceline.strategies.registry.priced import stored_in_16_bits
from paceline.strategies.registry.survival import average_period, check_elastic
from paceline.system import interrupts
from paceline.system.forked import limit_threads_after_fork
from paceline.task.task import Task

_log = logging.getLogger("paceline")

EVALUATIONS = 20


@runtime_checkable
class Planned(Protocol):
    """A configuration of `pl.plan`: a strategy for a number of workers."""

    def applied(self, task: Task, cluster: Cluster | None) -> tuple[Task, str, Cluster]:
        """Return the task, the strategy and the cluster to train with."""
        ...


@interrupts.recorded()
def train(
    task: Task,
    strategy: str | Strategy | Planned = "all-reduce",
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
    resume: bool | str | os.PathLike[str] = False,
    keep: int = 2,
    keep_best: bool = False,
    max_seconds: float | None = None,
) -> Run:
    """Train a task's model with a strategy on a cluster.

    With an entry of `pl.plan` as `strategy`, the run uses the first workers of the cluster, as many as planned.

    The run lasts `steps` updates, or `epochs` passes over the data (10 if neither is given), and at least one update.
    Passes are counted in samples, because an update of some strategies uses a part of a batch, or several passes. The
    metric is evaluated every `evaluate_every` steps (about 20 times a run by default) and at the end. With
    `stop_at_target` the run ends one step after the step that reached the task's target. `progress` is called about ten
    times a second. `callbacks` receive every record, one after the other, and may end the run: see `pl.callbacks`.

    With a folder as `checkpoint` the run is saved there every `checkpoint_every` steps, or after that time (5min by
    default), and at its end. The last `keep` checkpoints are retained, and the best with `keep_best`. With `resume` the
    run resumes from the newest checkpoint if there is one ("must": it is an error if there is none; "newest-good": skip
    damaged ones). With a path as `resume`, a folder of torch.distributed.checkpoint, the run begins with the weights in
    it, unless `checkpoint` has newer ones. The optimizer starts with new state.

    With `max_seconds` and `checkpoint`, the run ends at the first step after this time, counted from this call, with a
    last checkpoint. The returned run then has fewer steps, and `resume` continues it: for jobs with a time limit.

    Ctrl-C ends the run at the next safe point, and with `checkpoint` after a last checkpoint. It does
    not interrupt the task's own code in this process (model factory, data, callbacks). Press Ctrl-C again to do so.
    """
    if not isinstance(task, Task):
        raise ConfigurationError("task", "must be a pl.Task", task, "see pl.load_task for tasks in files")
    if isinstance(strategy, Planned):
        task, strategy, cluster = strategy.applied(task, cluster)
    limit_s = time_limit(max_seconds, checkpoint)
    limit_threads_after_fork()
    chosen = parse(strategy)
    where: Cluster = Local() if cluster is None else cluster
    check_cluster(where)
    if where.math == "none":
        task = stored_in_16_bits(task, chosen, where.workers)
    check_progress(progress)
    check_flag("stop_at_target", stop_at_target)
    check_seed(seed)
    weights = Path(resume) if isinstance(resume, os.PathLike) else None
    words = CheckpointOptions(
        checkpoint=checkpoint,
        every=checkpoint_every,
        resume=checkpoint is not None if isinstance(resume, os.PathLike) else resume,
        keep=keep,
        keep_best=keep_best,
    )
    watchers = Callbacks(callbacks)
    check_fp16(chosen, task.precision)
    roles = roles_of(chosen, where)
    check_elastic(task, chosen, where, checkpoint)
    count = count_updates(task, chosen, roles, steps=steps, epochs=epochs, seed=seed)
    in_epoch = partial(count_updates, task, chosen, roles, steps=None, epochs=1, seed=seed)
    every = in_epoch() if task.schedule_every == "epoch" else task.schedule_every
    schedule = schedule_in_steps(task, in_epoch, every)
    interrupts.safe_point()  # the task's data and model are user code, which may take long
    with _device(where):
        module = task.build_model(seed)
    interrupts.safe_point()
    _check_has_data(task, module, where)
    if task.sync_batch_norm:
        is_possible = Declarations.of(chosen).syncs_batch_norm(len(roles) - roles.count("server"))
        check_strategy_and_model(describe(chosen), module, is_possible=is_possible)
    if weights is not None:
        module.load_state_dict(read_distributed_checkpoint(weights, module.state_dict()))
    job = Job(
        strategy=chosen,
        roles=roles,
        seed=seed,
        name=spell(strategy) if isinstance(strategy, str) else describe(chosen),
        task=dataclasses.replace(
            task, model=portable(task.model, module), schedule=schedule, schedule_every=every
        ),
        steps=count,
        evaluate_every=_check_evaluate_every(task, evaluate_every, count),
        stop_at_target=stop_at_target,
        min_workers=where.min_workers,
        autocast=of_precision(task.precision, module),
        compiles=task.compile or is_compiled(module),
        watch=Watch(
            steps=watchers.want_steps, evaluations=watchers.want_evaluations, state=watchers.want_state
        ),
    )
    job = _with_restart_points(_with_checkpoints(job, words, where, module))
    with suspended(), _checkpointing(job, where, limit_s):
        run = _watched_run(job, where, module, progress, watchers)
    if limit_s < math.inf:
        return _stopped_in_time(run, job)
    if epochs is not None and not stop_at_target and not watchers:
        compare_length(run, epochs)
    return run


def _with_restart_points(job: Job) -> Job:
    """Return the job with points at which programs start again, if each worker has a model of its own."""
    if not job.regroups or job.state_at != "workers":
        return job
    return dataclasses.replace(job, generations=GenerationPlan(every=average_period(job.strategy)))


def _with_checkpoints(job: Job, options: CheckpointOptions, cluster: Cluster, module: nn.Module) -> Job:
    """Return the job with checkpoints as requested. With `resume` it starts from the newest checkpoint."""
    if options.checkpoint is None:
        return job
    assert job.task is not None
    if cluster.math == "none":
        remedy = 'omit checkpoint, or use math="real"'
        raise ConfigurationError("checkpoint", "needs tensor math: there is no state to save", "none", remedy)
    run = RunDescription(
        task=job.task,
        module=module,
        name=job.name,
        strategy=describe(job.strategy),
        roles=job.roles,
        replicates=job.declared.replicates,
        cluster=str(cluster),
        launch_id=cluster.launch_id,
        steps=job.steps,
        seed=job.seed,
        autocast=", ".join(map(str, job.autocast)) or "none",
    )
    plan = plan_run(options, run)
    return dataclasses.replace(
        job, steps=plan.steps, generations=plan.generations, checkpointing=plan.checkpointing
    )


def _checkpointing(job: Job, cluster: Cluster, limit_s: float) -> contextlib.AbstractContextManager[None]:
    if job.checkpointing is None:
        return contextlib.nullcontext()
    writes = cluster.launch_id is None
    return checkpointing(job.checkpointing.store, job.generations.first, writes=writes, limit_s=limit_s)


def _stopped_in_time(run: Run, job: Job) -> Run:
    """Return a run that stopped at its time limit, with the model of its last checkpoint; any other run unchanged."""
    if job.checkpointing is None or run.state or run.steps >= job.steps:
        return run
    store = job.checkpointing.store
    newest = store.newest()
    if newest is not None:
        run.state = model_state(newest)
        if run.module is not None:
            run.module.load_state_dict(run.state)
        _log.warning("%s", advice(store))
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
    """Return the role of each rank.

    If the number of processes is fixed, use as many workers as fit beside servers.
    """
    processes = cluster.ranks
    if processes is None:
        return tuple(strategy.roles(cluster.workers))
    for workers in range(processes, 0, -1):
        roles = tuple(strategy.roles(workers))
        if len(roles) == processes:
            return roles
    fewest = len(strategy.roles(1))
    bound = f"must be enough for {describe(strategy)}, which needs {fewest} for one worker"
    raise ConfigurationError("processes", bound, processes, "launch more")


def _device(cluster: Cluster) -> contextlib.AbstractContextManager[object]:
    """Return the meta device if no tensor math is done, so that the model needs no memory."""
    if cluster.math == "none":
        return torch.device("meta")
    return contextlib.nullcontext()


def _check_has_data(task: Task, module: nn.Module, cluster: Cluster) -> None:
    """Raise if a model without data (on the meta device) or dtypes of a simulation are to be trained with real
    math."""
    if cluster.math == "none":
        return
    for argument in ("master_dtype", "gradient_dtype"):
        dtype = getattr(task, argument)
        if dtype is not None:
            remedy = "omit it: gradients and updates then have the dtype of the parameters"
            bound = 'must not be given unless the cluster is pl.Simulated(math="none")'
            raise ConfigurationError(argument, bound, dtype, remedy)
    if any(p.is_meta for p in module.parameters()):
        bound = 'must be pl.Simulated(math="none") for a model of shapes only, such as pl.models.GPT'
        remedy = 'write pl.Simulated(workers=4, math="none", device=pl.devices.A100)'
        raise ConfigurationError("cluster", bound, cluster, remedy)


def check_seed(seed: int) -> int:
    """Return the seed if it is valid, else raise."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ConfigurationError("seed", "must be a whole number from 0 to 4294967295", seed)
    return seed


def _check_evaluate_every(task: Task, evaluate_every: int | None, steps: int) -> int:
    if evaluate_every is None:
        return max(1, steps // EVALUATIONS) if task.metric is not None else 0
    check_evaluate_every(evaluate_every)
    return evaluate_every
