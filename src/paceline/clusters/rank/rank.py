"""What the contexts of all worlds have in common: who a rank is, and its loop over batches.

A world adds how it waits, and its own `model` and `net`; the logbook is the same everywhere.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch import Tensor

from paceline.clusters.job import Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.rank.data import TrainingData
from paceline.clusters.rank.logbook import Logbook
from paceline.clusters.rank.observer import Observer
from paceline.context import Batch
from paceline.replica.samples import Samples
from paceline.trace import Kind, Recorder
from paceline.trace.spans import pack_span

__all__ = ["DELAY_STREAM", "Rank"]

# Streams of chance: each purpose draws from a stream of its own, so that one does not disturb another.
PROGRAM_STREAM, DELAY_STREAM = 1, 2


def _stream(seed: int, rank: int, purpose: int) -> np.random.Generator:
    """Same stream as default_rng([seed, rank, purpose]), but twice as fast to create."""
    return np.random.default_rng(np.array([seed, rank, purpose], dtype=np.uint32))


class Rank(ABC):
    """One rank of a run. Its subclasses satisfy `paceline.context.Context`."""

    # A simulation has thousands of ranks. Slots are faster to read than a dictionary.
    __slots__ = (
        "_rng",
        "delay_rng",
        "is_reporter",
        "job",
        "log",
        "model",
        "net",
        "outcome",
        "rank",
        "recorder",
        "role",
        "servers",
        "step",
        "twins",
        "workers",
    )

    model: Any
    net: Any

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.role = job.roles[rank]
        workers = job.workers
        self.workers: Sequence[int] = range(workers)
        self.servers: Sequence[int] = range(workers, job.ranks)
        self.is_reporter = rank == job.reporter
        self.delay_rng = _stream(job.seed, rank, DELAY_STREAM)
        self.step = 0
        self.recorder = Recorder(rank, self.role)
        self.outcome = Outcome(rank=rank)
        self.log = Logbook(self)
        self.twins: list[Rank] = []
        """This rank once more: see `Learner.twin`."""
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = _stream(self.job.seed, self.rank, PROGRAM_STREAM)
        return self._rng

    # The loop over steps

    async def rounds(self) -> AsyncIterator[int]:
        step = 0
        while step < self.last_step:
            self.step = step
            yield step
            self.log.finish_step(step)
            step += 1

    async def batches(self, *, endless: bool = False) -> AsyncIterator[Batch]:
        data, rank = self.data, self.rank
        upcoming = data.ahead(data.batch_of(rank, step) for step in itertools.count())
        if not endless:
            async for _ in self.rounds():
                yield next(upcoming)
            return
        outcome = self.outcome
        for batch in upcoming:
            self.step = batch.step
            yield batch
            outcome.bytes_over_time.append((self.now(), outcome.bytes_sent))

    # What a world adds

    @property
    @abstractmethod
    def data(self) -> TrainingData: ...

    @property
    @abstractmethod
    def test_samples(self) -> Samples | None: ...

    @property
    @abstractmethod
    def last_step(self) -> int:
        """Where the run ends: after the steps it was asked for, or earlier if the target is reached."""

    @abstractmethod
    def end_after(self, step: int) -> None:
        """Let every rank end the run when it has done step number `step`."""

    @abstractmethod
    def announce(self, metric: float) -> None:
        """Let every rank know the reporter's last metric, before this one goes on."""

    @property
    @abstractmethod
    def announced(self) -> float:
        """The metric that was last announced."""

    @abstractmethod
    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        """Show a record, and the state of the model if given, to the driver's callbacks; whether the run shall end."""

    @abstractmethod
    def now(self) -> float: ...

    def clock_stopped(self) -> AbstractContextManager[None]:
        """While the reporter looks at the model: that takes no time in a world whose time is not this machine's."""
        return nullcontext()

    @abstractmethod
    def open_parameter_board(self) -> Observer:
        """Where the workers show their parameters to the run."""

    @abstractmethod
    def show_progress(self, record: dict[str, Any]) -> None:
        """Tell the driver how far the run has come."""

    @abstractmethod
    def go_on_without(self, rank: int) -> None:
        """The strategy does without a rank that is lost, or late."""

    # Notes

    def span(self, kind: Kind, start_s: float, end_s: float, peer: int = -1, nbytes: int = 0) -> None:
        self.recorder.packed.append(pack_span(kind, start_s, end_s, peer, nbytes, self.step))

    def samples_by(self, record: dict[str, Any]) -> int:
        """About how many samples had been seen by a record; the run's history counts them exactly."""
        if self.outcome.updates:  # where ranks update at their own pace, a record tells of its own samples
            return int(record["samples"] * record["step"])
        return int(record.get("samples", record["step"] * self.data.batches.batch_size))

    def close(self) -> None:
        """Drop the parts. They refer to their rank, and only the garbage collector could free such a cycle."""
        for each in (self, *self.twins):
            del each.model, each.net, each.log

    def finish(self) -> Outcome:
        """What this rank brings back."""
        return self.log.finish()
