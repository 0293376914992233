"""A rank's part in the checkpoints of its run: it writes what it holds at the end of each leg, beside the training."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from paceline.checkpoints import BackgroundWriter, Shard
from paceline.clusters.job import Job
from paceline.clusters.rank.notes import Notes
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.restore import Shards, restore
from paceline.clusters.rank.snapshot import LOST, model_facts, snapshot

__all__ = ["Keeper", "prepare", "prepare_all"]

_log = logging.getLogger("paceline")

_MOMENT_S = 2.0


def prepare(rank: Rank, shards: Shards | None = None) -> None:
    """Before the run begins: let a rank go on from a checkpoint, and write others, if its job says so.

    `shards`: the files of that checkpoint, where several ranks of this process share them.
    """
    keeping = rank.job.keeping
    if keeping is None:
        return
    keeping.store.check_shared()
    if keeping.resumed is not None:
        restore(rank, shards or Shards(rank.job))
    rank.keeper = Keeper(rank)


def prepare_all(ranks: Sequence[Rank], job: Job) -> None:
    """Where all ranks are in this process: they read each file once."""
    shards = Shards(job) if job.keeping is not None and job.keeping.resumed is not None else None
    for rank in ranks:
        prepare(rank, shards)


class Keeper:
    """What one rank writes."""

    def __init__(self, rank: Rank) -> None:
        keeping = rank.job.keeping
        assert keeping is not None
        self._rank = rank
        self._keeping = keeping
        self._notes = Notes()
        self._writer = BackgroundWriter(keeping.store, tell=_log.warning, since=rank.job.legs.first)
        self._kept_s = time.monotonic()
        self._is_prepared = False

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint, where that goes by time."""
        every_s = self._keeping.every_s
        return every_s is not None and time.monotonic() - self._kept_s >= every_s

    def prepare(self, step: int) -> None:
        """After a step: the first time, when the optimizer remembers something, get memory for what will be kept."""
        if not self._is_prepared:
            self._is_prepared = True
            self._writer.prepare(snapshot(self._rank, step, Notes()))

    def keep(self, step: int, *, is_last: bool) -> None:
        """At the end of a leg. The last one waits for the one before it to be on the disk; others are left out then."""
        rank, keeping = self._rank, self._keeping
        self._kept_s = time.monotonic()
        if is_last:
            self._writer.finish(keeping.deadline_s)
        shard = snapshot(rank, step, self._notes)
        if not rank.is_reporter:
            self._writer.submit(step, shard)
            return
        facts = self._facts(step)
        self._writer.submit(step, shard, lambda: self._commit(step, facts))

    def finish(self) -> None:
        """At the end of the run: what is being written is on the disk."""
        self._writer.finish(self._keeping.deadline_s)

    def close(self) -> None:
        """After an error too: what is being written has a moment to come to the disk."""
        self._writer.finish(_MOMENT_S)

    def _facts(self, step: int) -> dict[str, Any]:
        rank = self._rank
        return {
            **self._keeping.facts,
            "roles": list(rank.job.roles),
            "reporter": rank.rank,
            "steps": rank.last_step,
            "asked": rank.job.steps,
            "metric": _last_metric(rank),
            "model": model_facts(rank),
        }

    def _commit(self, step: int, facts: dict[str, Any]) -> None:
        """In the writer's thread."""
        store, ranks = self._keeping.store, self._rank.job.ranks
        for lost in filter(self._rank.is_lost, range(ranks)):
            store.write(step, Shard(rank=lost, tensors={}, facts={LOST: True}))
        store.commit(step, ranks, facts, deadline_s=self._keeping.deadline_s)


def _last_metric(rank: Rank) -> float | None:
    records = rank.outcome.records or rank.outcome.updates
    return next((each["metric"] for each in reversed(records) if each["metric"] is not None), None)
