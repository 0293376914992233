"""The checkpoint arguments of `pl.train`, validated before the run: folder, interval, and the checkpoint to resume."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checkpoints import Checkpoint, Store
from paceline.clusters.base.checkpoint_plan import CheckpointPlan
from paceline.clusters.base.generations import GenerationPlan
from paceline.clusters.base.job import Cluster, Job
from paceline.costs.units import parse_seconds
from paceline.errors import ConfigurationError
from paceline.strategies import describe
from paceline.task.fingerprint import changes, fingerprint, layers, settings

if TYPE_CHECKING:
    from torch import nn

_log = logging.getLogger("paceline")

DEFAULT_EVERY = "5min"
_RESUME = (False, True, "must", "newest-good")
_MEETINGS = 100
"""If checkpoints are timed and workers step independently, the workers synchronize about this often in a run."""
_MAY_DIFFER = ("target",)
_LISTED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """The arguments of `pl.train` that control checkpoints."""

    checkpoint: str | os.PathLike[str] | None = None
    every: int | str | None = None
    resume: bool | str = False
    keep: int = 2
    keep_best: bool = False

    def __post_init__(self) -> None:
        if self.checkpoint is None:
            for argument, value, default in self._others():
                if value != default:
                    remedy = 'give the folder, such as checkpoint="runs/x"'
                    raise ConfigurationError(argument, "needs checkpoint", value, remedy)
        elif not isinstance(self.checkpoint, str | os.PathLike) or not os.fspath(self.checkpoint):
            raise ConfigurationError("checkpoint", "must be the path of a folder", self.checkpoint)
        if not any(self.resume is each or self.resume == each for each in _RESUME):
            bound = 'must be False, True, "must" or "newest-good"'
            raise ConfigurationError(
                "resume", bound, self.resume, "True starts a new run if there is no checkpoint"
            )
        _ = self.interval

    def _others(self) -> list[tuple[str, object, object]]:
        return [
            ("checkpoint_every", self.every, None),
            ("resume", self.resume, False),
            ("keep", self.keep, 2),
            ("keep_best", self.keep_best, False),
        ]

    @property
    def interval(self) -> tuple[int | None, float | None]:
        """Interval between two checkpoints as (steps, None) or (None, seconds)."""
        every = DEFAULT_EVERY if self.every is None else self.every
        if isinstance(every, str) and not every.strip().isdecimal():
            seconds = parse_seconds(every, "checkpoint_every")
            if seconds <= 0:
                raise ConfigurationError("checkpoint_every", "must be more than 0 s", every, "try 5min")
            return None, seconds
        steps = int(every) if isinstance(every, str) else every
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            remedy = 'write 100 for every 100 steps, or "5min"'
            bound = "must be a whole number of at least 1, or a time"
            raise ConfigurationError("checkpoint_every", bound, every, remedy)
        return steps, None


def with_checkpoints(job: Job, words: CheckpointOptions, cluster: Cluster, module: nn.Module) -> Job:
    """Return the job with checkpointing as requested. With `resume` it starts from the newest checkpoint."""
    if words.checkpoint is None:
        return job
    task = job.task
    assert task is not None
    if cluster.math == "none":
        remedy = 'omit checkpoint, or use math="real"'
        raise ConfigurationError("checkpoint", "needs tensor math: there is no state to save", "none", remedy)
    best: dict[str, Any] = {"keep_best": words.keep_best, "better": task.better_way}
    store = Store(Path(words.checkpoint), keep=words.keep, **best)
    if words.keep_best and task.metric is None:
        raise ConfigurationError("keep_best", "needs a metric", True, "give Task(metric=…, test=…)")
    store.check_writable()
    if cluster.launch_id is not None:  # other processes call pl.train too; the first of them locks the folder
        store.check_unlocked(cluster.launch_id)
    else:
        store.lock()
    try:
        return _with_plan(job, words, store, _facts(job, cluster, module))
    except BaseException:
        store.unlock()
        raise


def _with_plan(job: Job, words: CheckpointOptions, store: Store, facts: Mapping[str, Any]) -> Job:
    task = job.task
    assert task is not None
    found = _checkpoint(store, words, facts, job)
    first = 0 if found is None else found.step
    _check_not_over(job, first)
    if found is not None and _ended_early(found, job):
        job = dataclasses.replace(job, steps=first)
    steps, seconds = words.interval
    # With a generator as the task's step, a checkpoint must be at the first turn of a cycle.
    turns = len(task.turns) or 1
    every = None if steps is None else math.ceil(steps / turns) * turns
    meet_every = every or max(1, job.steps // _MEETINGS)
    resumed = None if found is None else found.folder
    return dataclasses.replace(
        job,
        generations=GenerationPlan(
            first=first, every=every, may_end_early=seconds is not None, meet_every=meet_every, multiple=turns
        ),
        checkpointing=CheckpointPlan(store=store, every_s=seconds, resumed=resumed, facts=facts),
    )


def _ended_early(found: Checkpoint, job: Job) -> bool:
    """Return whether the same run has already ended early, at its target or by a callback, so nothing is left to do."""
    return bool(found.facts["steps"] == found.step and found.facts["asked"] == job.steps)


def _check_not_over(job: Job, first: int) -> None:
    if first > job.steps:
        remedy = "use at least this number, or another folder"
        raise ConfigurationError(
            "steps", f"must be at least {first}, which the run has taken", job.steps, remedy
        )


def _facts(job: Job, cluster: object, module: nn.Module) -> dict[str, Any]:
    assert job.task is not None
    return {
        "name": job.name,
        "strategy": describe(job.strategy),
        "replicates": list(getattr(job.strategy, "replicates", ())),
        "cluster": str(cluster),
        "seed": job.seed,
        "better": job.task.better_way,
        "task": _task_facts(job, module),
        "layers": layers(module),
        "schedule_every": str(job.task.schedule_every),
    }


def _task_facts(job: Job, module: nn.Module) -> dict[str, str]:
    """Return the settings that must be unchanged to resume a run."""
    task = job.task
    assert task is not None
    found = fingerprint(task, module, samples=0, test_samples=0) | settings(task, module)
    found["seed"] = str(job.seed)
    found["autocast"] = ", ".join(map(str, job.autocast)) or "none"
    return {name: value for name, value in found.items() if name not in _MAY_DIFFER}


# Which checkpoint to resume


def _checkpoint(
    store: Store, words: CheckpointOptions, facts: Mapping[str, Any], job: Job
) -> Checkpoint | None:
    if not words.resume:
        _refuse_used_folder(store)
        return None
    found = store.newest(good=words.resume == "newest-good")
    if found is None:
        if words.resume == "must":
            remedy = "give a folder with checkpoints, or omit resume"
            raise ConfigurationError("checkpoint", "must hold a checkpoint", str(store.folder), remedy)
        _log.warning("no checkpoint in %s: the run starts from the beginning", store.folder)
        return None
    _check_same_run(found, facts, job)
    _check_ranks(found, facts, job)
    _name_skipped(store, found)
    _log.info("the run resumes after step %d (%s)", found.step, found.folder)
    return found


def _name_skipped(store: Store, found: Checkpoint) -> None:
    """Log newer checkpoints that are not used: damaged ones, and those that a kill left incomplete."""
    damaged = [f"step-{step:08} is damaged" for step in store.steps() if step > found.step]
    unfinished = [f"{path.name} was not finished" for path in store.unfinished(found.step)]
    if damaged or unfinished:
        text = "newer checkpoints in %s are not used: %s; the run resumes after step %d (%s)"
        _log.warning(text, store.folder, "; ".join([*damaged, *unfinished]), found.step, found.folder.name)


def _refuse_used_folder(store: Store) -> None:
    there = store.steps()
    if there:
        whole = {each.step: each for each in store.checkpoints()}
        run = whole[there[-1]].run_name if there[-1] in whole else "a damaged checkpoint of a run"
        held = f"{store.folder}, which holds {run} up to step {there[-1]}"
        remedy = "resume=True (--resume) resumes it; or use another folder"
        raise ConfigurationError("checkpoint", "must be a folder without checkpoints", held, remedy)


def _check_same_run(found: Checkpoint, facts: Mapping[str, Any], job: Job) -> None:
    there = found.facts.get("task")
    differ = ["it does not describe its task"]
    if isinstance(there, dict):
        differ = changes(there, facts["task"]) + _other_layers(found, facts) + _other_pace(found, facts, job)
    if differ:
        raise found.of_another_task(differ)


def _other_layers(found: Checkpoint, facts: Mapping[str, Any]) -> list[str]:
    before, now = found.facts.get("layers", facts["layers"]), facts["layers"]
    differ = changes(before, now, what="layer ")
    if before.keys() != now.keys():
        differ.append(f"the number of layers was {len(before)} and is {len(now)} now")
    return differ[:_LISTED]


def _other_pace(found: Checkpoint, facts: Mapping[str, Any], job: Job) -> list[str]:
    """Return a changed `schedule_every`. It may differ with another strategy, where an epoch has other updates."""
    if facts["strategy"] != found.facts["strategy"] or list(job.roles) != found.facts["roles"]:
        return []
    before = found.facts.get("schedule_every", facts["schedule_every"])
    return changes({"schedule_every": before}, {"schedule_every": facts["schedule_every"]})


def _check_ranks(found: Checkpoint, facts: Mapping[str, Any], job: Job) -> None:
    """Check that the ranks may change: every role must be replicated, so that one rank has the complete state."""
    before = tuple(found.facts["roles"])
    if facts["strategy"] == found.facts["strategy"] and job.roles == before:
        return
    for strategy, roles, replicates in (
        (found.facts["strategy"], before, found.facts["replicates"]),
        (facts["strategy"], job.roles, facts["replicates"]),
    ):
        alone = sorted({*roles} - {*replicates})
        if len(roles) > 1 and alone:
            was, now = (
                f"{words} with {_ranks(each)}"
                for words, each in ((found.facts["strategy"], before), (facts["strategy"], job.roles))
            )
            bound = f"must be {was}, as before: in {strategy} every {alone[0]} has its own state"
            remedy = (
                "changing the workers or the strategy is possible only if all workers hold the same state"
            )
            raise ConfigurationError("strategy", bound, now, remedy)


def _ranks(roles: Sequence[str]) -> str:
    servers = sum(role == "server" for role in roles)
    workers = len(roles) - servers
    words = f"{workers} worker{'s' if workers > 1 else ''}"
    return f"{words} and {servers} server{'s' if servers > 1 else ''}" if servers else words
