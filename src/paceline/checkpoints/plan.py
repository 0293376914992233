"""Checkpoint settings of a run, as passed to its ranks, and how they follow from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.checkpoint import Checkpoint
from paceline.checkpoints.description import RunDescription
from paceline.checkpoints.generations import GenerationPlan
from paceline.checkpoints.options import CheckpointOptions
from paceline.checkpoints.resume import find_checkpoint
from paceline.checkpoints.store import Store
from paceline.errors import ConfigurationError

_DEADLINE_S = 300.0
_MEETINGS = 100
"""Approximate number of synchronizations in a run, if checkpoints are timed and workers step independently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """Checkpoint settings. All ranks write a checkpoint at the end of each generation."""

    store: Store
    every_s: float | None = None
    """Seconds after which the reporter ends a generation. None if generations end at the steps set in the job."""
    resumed: Path | None = None
    """Checkpoint to resume from. None for a new run."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Description of the run, stored in its checkpoints."""
    deadline_s: float = _DEADLINE_S
    """Seconds that the reporter waits for the files of the other ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """A run with checkpoints."""

    steps: int
    generations: GenerationPlan
    checkpointing: CheckpointPlan


def plan_run(options: CheckpointOptions, run: RunDescription) -> RunPlan:
    """Plan a run with checkpoints, and lock their folder. With `resume` it starts from the newest checkpoint."""
    assert options.checkpoint is not None
    better = run.task.better_way
    store = Store(Path(options.checkpoint), keep=options.keep, keep_best=options.keep_best, better=better)
    if options.keep_best and run.task.metric is None:
        raise ConfigurationError("keep_best", "needs a metric", True, "give Task(metric=…, test=…)")
    store.check_writable()
    if run.launch_id is not None:  # other processes call pl.train too; the first of them locks the folder
        store.check_unlocked(run.launch_id)
    else:
        store.lock()
    try:
        return _plan(options, store, run)
    except BaseException:
        store.unlock()
        raise


def _plan(options: CheckpointOptions, store: Store, run: RunDescription) -> RunPlan:
    found = find_checkpoint(store, options.resume, run)
    first = 0 if found is None else found.step
    _check_not_over(run, first)
    run_steps = first if found is not None and _ended_early(found, run) else run.steps
    steps, seconds = options.interval
    # With a generator as the task's step, a checkpoint must be at the first turn of a cycle.
    turns = len(run.task.turns) or 1
    every = None if steps is None else math.ceil(steps / turns) * turns
    meet_every = every or max(1, run_steps // _MEETINGS)
    generations = GenerationPlan(
        first=first, every=every, may_end_early=seconds is not None, meet_every=meet_every, multiple=turns
    )
    resumed = None if found is None else found.folder
    plan = CheckpointPlan(store=store, every_s=seconds, resumed=resumed, facts=run.facts)
    return RunPlan(steps=run_steps, generations=generations, checkpointing=plan)


def _ended_early(found: Checkpoint, run: RunDescription) -> bool:
    """Return whether the same run has already ended early, at its target or by a callback, so that it is complete."""
    return bool(found.facts["steps"] == found.step and found.facts["asked"] == run.steps)


def _check_not_over(run: RunDescription, first: int) -> None:
    if first > run.steps:
        remedy = "use at least this number, or another folder"
        bound = f"must be at least {first}, the number of steps that the run has made"
        raise ConfigurationError("steps", bound, run.steps, remedy)
