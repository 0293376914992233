"""What is asked of `pl.train` about checkpoints, checked before anything runs: where they are, how often, and which one
the run goes on from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checkpoints import Checkpoint, Store
from paceline.clusters import stopping
from paceline.clusters.job import Job
from paceline.clusters.keeping import Keeping
from paceline.clusters.legs import Legs
from paceline.costs.units import parse_seconds
from paceline.errors import ConfigurationError, PacelineError
from paceline.fingerprint import differences, fingerprint
from paceline.strategies import describe

if TYPE_CHECKING:
    from torch import nn

    from paceline.task import Task

__all__ = ["KeepingWords", "kept", "with_keeping"]

_log = logging.getLogger("paceline")

DEFAULT_EVERY = "5min"
_RESUME = (False, True, "must", "newest-good")
_MEETINGS = 100
"""Where checkpoints go by time and workers take steps of their own, they meet about so often in a run."""
_MAY_DIFFER = ("target",)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepingWords:
    """The arguments of `pl.train` that are about checkpoints."""

    checkpoint: str | os.PathLike[str] | None = None
    every: int | str | None = None
    resume: bool | str = False
    keep: int = 2
    keep_best: bool = False

    def __post_init__(self) -> None:
        if self.checkpoint is None:
            for argument, value, default in self._others():
                if value != default:
                    remedy = 'name the folder, such as checkpoint="runs/x"'
                    raise ConfigurationError(argument, "needs checkpoint", value, remedy)
        elif not isinstance(self.checkpoint, str | os.PathLike) or not os.fspath(self.checkpoint):
            raise ConfigurationError("checkpoint", "must be the path of a folder", self.checkpoint)
        if not any(self.resume is each or self.resume == each for each in _RESUME):
            bound = 'must be False, True, "must" or "newest-good"'
            raise ConfigurationError("resume", bound, self.resume, "True begins anew where there is nothing")
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
        """Steps, or seconds, between two checkpoints."""
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


def with_keeping(job: Job, words: KeepingWords, cluster: object, module: nn.Module) -> Job:
    """The job, kept as the words say; it goes on from the newest checkpoint if they say so."""
    if words.checkpoint is None:
        return job
    task = job.task
    assert task is not None
    if getattr(cluster, "math", "real") == "none":
        remedy = 'leave checkpoint out, or use math="real"'
        raise ConfigurationError("checkpoint", "needs mathematics: there is nothing to keep", "none", remedy)
    best: dict[str, Any] = {"keep_best": words.keep_best, "better": task.better_way}
    store = Store(Path(words.checkpoint), keep=words.keep, **best)
    if words.keep_best and task.metric is None:
        raise ConfigurationError("keep_best", "needs a metric", True, "give Task(metric=…, test=…)")
    store.check_writable()
    facts = _facts(job, cluster, module)
    found = _checkpoint(store, words, facts, job)
    first = 0 if found is None else found.step
    _check_not_over(job, first)
    if found is not None and _ended_early(found, job):
        job = dataclasses.replace(job, steps=first)
    steps, seconds = words.interval
    # A step of the user's that yields begins with its first turn.
    turns = len(task.turns) or 1
    every = None if steps is None else math.ceil(steps / turns) * turns
    meet_every = every or max(1, job.steps // _MEETINGS)
    resumed = None if found is None else found.folder
    return dataclasses.replace(
        job,
        legs=Legs(first=first, every=every, said=seconds is not None, meet_every=meet_every, multiple=turns),
        keeping=Keeping(store=store, every_s=seconds, resumed=resumed, facts=facts),
    )


def _ended_early(found: Checkpoint, job: Job) -> bool:
    """Whether the same run has ended already, at its target or by a callback: there is nothing left to do."""
    return bool(found.facts["steps"] == found.step and found.facts["asked"] == job.steps)


def _check_not_over(job: Job, first: int) -> None:
    if first > job.steps:
        remedy = "ask for as many or more, or name another folder"
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
        "task": _task_facts(job.task, module, job.seed),
    }


def _task_facts(task: Task, module: nn.Module, seed: int) -> dict[str, str]:
    """What must be the same for a run to go on."""
    found = fingerprint(task, module, samples=0, test_samples=0)
    found["seed"] = str(seed)
    found["optimizer"] = ", ".join(_optimizer(each, module) for each in task.by_optimizer().values())
    return {name: value for name, value in found.items() if name not in _MAY_DIFFER}


def _optimizer(task: Task, module: nn.Module) -> str:
    optimizer = task.build_optimizer(module)
    plain = {k: v for k, v in optimizer.defaults.items() if isinstance(v, bool | int | float | tuple | list)}
    settings = " ".join(f"{key}={value}" for key, value in plain.items() if value)
    return f"{type(optimizer).__name__} {settings}".strip()


# Which checkpoint


def _checkpoint(store: Store, words: KeepingWords, facts: Mapping[str, Any], job: Job) -> Checkpoint | None:
    if not words.resume:
        _refuse_used_folder(store)
        return None
    found = store.newest(good=words.resume == "newest-good")
    if found is None:
        if words.resume == "must":
            remedy = "name the folder of a run that was kept, or leave resume out"
            raise ConfigurationError("checkpoint", "must hold a checkpoint", str(store.folder), remedy)
        _log.warning("no checkpoint in %s: the run begins anew", store.folder)
        return None
    _check_same_run(store, found, facts)
    _check_ranks(found, facts, job)
    _log.info("the run goes on after step %d (%s)", found.step, found.folder)
    return found


def _refuse_used_folder(store: Store) -> None:
    there = store.checkpoints()
    if there:
        newest = there[-1]
        held = f"{store.folder}, which holds {_name(newest)} up to step {newest.step}"
        remedy = "resume=True (--resume) goes on with it; or name another folder"
        raise ConfigurationError("checkpoint", "must be a folder without checkpoints", held, remedy)


def _name(checkpoint: Checkpoint) -> str:
    return f"a run of {checkpoint.facts.get('name', 'another program')}"


def _check_same_run(store: Store, found: Checkpoint, facts: Mapping[str, Any]) -> None:
    there = found.facts.get("task")
    differ = ["it says nothing of its task"]
    if isinstance(there, dict):
        differ = differences({"there": [there], "here": [facts["task"]]})
    if differ:
        held = f"{store.folder}, which holds {_name(found)} up to step {found.step}"
        remedy = f"name another folder, or give what that run was given: {'; '.join(differ)}"
        raise ConfigurationError("checkpoint", "must be of this run", held, remedy)


def _check_ranks(found: Checkpoint, facts: Mapping[str, Any], job: Job) -> None:
    """Other ranks can take part where the reporter has all that there is to know of the model."""
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
            bound = f"must be {was}, as it was: in {strategy} each {alone[0]} has a state of its own"
            remedy = (
                "another number of workers, or another strategy, needs one whose workers all hold the same"
            )
            raise ConfigurationError("strategy", bound, now, remedy)


def _ranks(roles: Sequence[str]) -> str:
    servers = sum(role == "server" for role in roles)
    workers = len(roles) - servers
    words = f"{workers} worker{'s' if workers > 1 else ''}"
    return f"{words} and {servers} server{'s' if servers > 1 else ''}" if servers else words


# How it ends


@contextlib.contextmanager
def kept(job: Job, cluster: object) -> Iterator[None]:
    """While the run in this block goes on, it is kept. Whatever ends it early, the message says how to go on."""
    keeping = job.keeping
    if keeping is None:
        yield
        return
    # Processes that were launched together begin together: see their cluster.
    with stopping.stops_kept() as stop, contextlib.ExitStack() as stack:
        if not hasattr(cluster, "ranks"):
            keeping.store.begin(job.legs.first)
            stack.callback(keeping.store.end)
        try:
            yield
        except PacelineError as error:
            error.add_note(_advice(keeping.store))
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_advice(keeping.store)) from None
        if stop.signum:
            _end(stop.signum, _advice(keeping.store))


def _end(signum: int, advice: str) -> None:
    if signum == signal.SIGINT:
        raise KeyboardInterrupt(advice)
    _log.warning("%s", advice)
    raise SystemExit(128 + signum)


def _advice(store: Store) -> str:
    there = store.checkpoints()
    if not there:
        return f"there is no checkpoint in {store.folder} yet"
    return f"to go on after step {there[-1].step}: resume=True (--resume) with checkpoint {store.folder}"
