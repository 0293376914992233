"""Checkpoint writer of a rank: writes the rank's state at the end of each generation, in the background."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.checkpoints import BackgroundWriter, Shard, Store
from paceline.clusters.base.job import Job
from paceline.clusters.base.members import Membership
from paceline.clusters.rank.notes import Notes
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.restore import TRIAL, CheckpointFiles, restore
from paceline.clusters.rank.snapshot import LOST, model_facts, snapshot
from paceline.clusters.rank.trial import try_task

_log = logging.getLogger("paceline")

_MOMENT_S = 2.0


def prepare(rank: Rank, shards: CheckpointFiles | None = None) -> None:
    """Before the run starts: restore a rank from a checkpoint and set up its writer, if the job has checkpoints.

    `shards` are the files of the checkpoint to resume from, if several ranks in this process share them.
    """
    plan = rank.job.checkpointing
    if plan is None:
        return
    plan.store.check_shared()
    trial = try_task(rank.job, rank.data.samples) if rank.rank == 0 else None
    if plan.resumed is not None and not rank.joins:
        shards = shards or CheckpointFiles(rank.job)
        if trial is not None:
            shards.check_same_task(trial)
        restore(rank, shards)
    rank.checkpoint_writer = CheckpointWriter(rank, trial)


def prepare_all(ranks: Sequence[Rank], job: Job) -> None:
    """Prepare all ranks of this process. Each checkpoint file is read once."""
    shards = (
        CheckpointFiles(job)
        if job.checkpointing is not None and job.checkpointing.resumed is not None
        else None
    )
    for rank in ranks:
        prepare(rank, shards)


class CheckpointWriter:
    """Checkpoint writer of one rank."""

    def __init__(self, rank: Rank, trial: Mapping[str, Any] | None = None) -> None:
        """Create a writer. `trial` is the first rank's trial of the task. It is stored in that rank's shard."""
        plan = rank.job.checkpointing
        assert plan is not None
        self._rank = rank
        self._trial = {} if trial is None else {TRIAL: dict(trial)}
        self._plan = plan
        self._notes = Notes()
        self._writer = BackgroundWriter(plan.store, tell=_log.warning, since=rank.job.generations.first)
        self._kept_s = time.monotonic()
        self._is_prepared = False
        self.submitted = (0, 0)
        """Generation and step of the newest file that this rank has begun to write."""

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due, if checkpoints are written by time."""
        every_s = self._plan.every_s
        return every_s is not None and time.monotonic() - self._kept_s >= every_s

    def prepare(self, step: int) -> None:
        """Allocate memory for snapshots after the first step, when the optimizer has its state. Later calls do
        nothing."""
        if not self._is_prepared:
            self._is_prepared = True
            self._writer.prepare(snapshot(self._rank, step, Notes()))

    def save(self, step: int, *, is_last: bool) -> None:
        """Save the end of a generation.

        The save is skipped while the previous write is running, except for the last save, which waits.
        """
        rank, plan = self._rank, self._plan
        self._kept_s = time.monotonic()
        if is_last:
            self._writer.finish(plan.deadline_s)
        shard = snapshot(rank, step, self._notes)
        shard = dataclasses.replace(shard, facts={**shard.facts, **self._trial})
        facts, store, absent = self._facts(step), self._writer.store, self._absent()
        commit = (lambda: self._commit(store, step, facts, absent)) if rank.is_reporter else None
        if self._writer.submit(step, shard, commit):
            self.submitted = (store.generation, step)

    def begin_generation(self, membership: Membership) -> None:
        """Members have changed. Forget the records of dropped steps, and abandon the checkpoint under way."""
        self._notes = Notes()
        self.abandon("the members have changed")
        self._writer.store = dataclasses.replace(self._writer.store, generation=membership.generation)

    def abandon(self, reason: str) -> None:
        """Give up a checkpoint that is being written."""
        if self._writer.under_way is not None:
            self._writer.store.skip(self._writer.under_way, self._rank.rank, reason)

    def finish_if(self, submitted: Iterable[tuple[int, int]]) -> None:
        """Finish the files that are being written. The reporter does so only if all members have submitted theirs.

        For virtual time, where the newest checkpoint must not depend on the speed of this machine.
        """
        step = self._writer.under_way
        present = (self._writer.store.generation, step)
        if step is not None and (not self._rank.is_reporter or all(each == present for each in submitted)):
            self._writer.finish(self._plan.deadline_s)

    def finish(self) -> None:
        """At the end of the run, wait until all pending files are on disk."""
        self._writer.finish(self._plan.deadline_s)

    def close(self) -> None:
        """Wait a short time for pending files. Also called after an error."""
        self._writer.finish(_MOMENT_S)

    def _facts(self, step: int) -> dict[str, Any]:
        rank = self._rank
        return {
            **self._plan.facts,
            "roles": list(rank.job.roles),
            "reporter": rank.rank,
            "steps": rank.last_step,
            "asked": rank.job.steps,
            "metric": _last_metric(rank),
            "model": model_facts(rank),
        }

    def _absent(self) -> set[int]:
        """Return the ranks that are not members. They write no files."""
        members = self._rank.members
        return set() if members is None else set(range(self._rank.job.ranks)) - set(members)

    def _commit(self, store: Store, step: int, facts: dict[str, Any], absent: set[int]) -> None:
        """Commit the checkpoint. Runs in the writer's thread."""
        job = self._rank.job
        if not job.returns_to_checkpoint:  # it can do without the parts of ranks that are lost meanwhile
            absent = absent.union(filter(self._rank.is_lost, range(job.ranks)))
        for lost in sorted(absent):
            store.write(step, Shard(rank=lost, tensors={}, facts={LOST: True}))
        store.commit(step, job.ranks, facts, deadline_s=self._plan.deadline_s)


def _last_metric(rank: Rank) -> float | None:
    records = rank.outcome.records or rank.outcome.updates
    return next((each["metric"] for each in reversed(records) if each["metric"] is not None), None)
