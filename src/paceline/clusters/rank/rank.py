"""What the contexts of all worlds have in common: who a rank is, and its loop over batches.

A world adds how it waits, and its own `model` and `net`; the logbook is the same everywhere.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import numpy as np
from torch import Tensor

from paceline.clusters.job import Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.rank.data import TrainingData
from paceline.clusters.rank.logbook import Logbook
from paceline.clusters.rank.lone_samples import warn_of_lone_samples
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.row_board import RowBoard
from paceline.context import Batch, Context
from paceline.replica.memory import Ledger
from paceline.replica.samples import Samples
from paceline.trace import Kind, Recorder
from paceline.trace.spans import pack_span

__all__ = ["DELAY_STREAM", "Rank"]

# Streams of chance: each purpose draws from a stream of its own, so that one does not disturb another.
PROGRAM_STREAM, DELAY_STREAM = 1, 2


def _stream(seed: int, rank: int, purpose: int) -> np.random.Generator:
    """Same stream as default_rng([seed, rank, purpose]), but twice as fast to create."""
    return np.random.default_rng(np.array([seed, rank, purpose], dtype=np.uint32))


class Keeps(Protocol):
    """See `paceline.clusters.rank.keeper`."""

    @property
    def is_due(self) -> bool: ...
    def prepare(self, step: int) -> None: ...
    def keep(self, step: int, *, is_last: bool) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class Rank(ABC):
    """One rank of a run. Its subclasses satisfy `paceline.context.Context`."""

    # A simulation has thousands of ranks. Slots are faster to read than a dictionary.
    __slots__ = (
        "_end",
        "_in_legs",
        "_rng",
        "begun",
        "delay_rng",
        "drawn",
        "is_reporter",
        "job",
        "keeper",
        "ledger",
        "leg",
        "log",
        "model",
        "net",
        "outcome",
        "own_pace",
        "rank",
        "recorder",
        "restored_twins",
        "resumed_s",
        "role",
        "servers",
        "step",
        "stopped",
        "twins",
        "workers",
    )

    model: Any
    net: Any
    price: Any
    """What its computations cost, where that is drawn. None: what they take."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.role = job.roles[rank]
        workers = job.workers
        self.workers: Sequence[int] = range(workers)
        self.servers: Sequence[int] = range(workers, job.ranks)
        self.is_reporter = rank == job.reporter
        self.delay_rng = _stream(job.seed, rank, DELAY_STREAM)
        self.leg = 0
        """Which leg of the run this is, counted since the rank's process began."""
        self.begun = self.step = job.legs.first
        """The step that this leg begins with."""
        self._in_legs = job.legs.are_many
        self._end = job.legs.end_of(self.begun)
        self.drawn = self.begun
        """Batches that this rank has taken, where it goes at its own pace."""
        self.own_pace = False
        self.recorder = Recorder(rank, self.role)
        self.outcome = Outcome(rank=rank)
        self.ledger = Ledger()
        """The memory that it holds, that of its twins included."""
        self.log = Logbook(self)
        self.twins: list[Rank] = []
        """This rank once more: see `Learner.twin`."""
        self._rng: np.random.Generator | None = None
        self.keeper: Keeps | None = None
        """Writes checkpoints, where the run is kept."""
        self.resumed_s = 0.0
        """Seconds of the run that were over when this rank went on from a checkpoint."""
        self.stopped = False
        """Whether the run has stopped before its end, to go on another time."""
        self.restored_twins: list[Callable[[Any], None]] = []
        """What to do with each twin when it is made, where the run goes on from a checkpoint."""

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = _stream(self.job.seed, self.rank, PROGRAM_STREAM)
        return self._rng

    # The life of a rank

    async def live(self) -> Any:
        """Run the program leg by leg, to the end of the run; what it returned in the last one."""
        await self.catch_up()
        if self._is_over:
            await self.log.look_again()
            return None
        while True:
            result = await cast(Awaitable[Any], self.job.program(self.rank)(cast(Context, self)))
            self.settle()
            for each in (self, *self.twins):
                each.drawn = each.step + 1 if each.own_pace else each.drawn
            end = self.leg_end
            self.stopped = self.said == 2 * end + 1
            ends = self.stopped or end >= self.last_step
            if self.keeper is not None:
                self.keeper.keep(end, is_last=ends)
            if ends:
                return result
            self.begin_leg(end)

    @property
    def _is_over(self) -> bool:
        """Whether the run goes on from where it had ended."""
        return 0 < self.job.legs.first == self.begun and self.begun >= self.last_step

    def begin_leg(self, first: int) -> None:
        """Nothing is under way. A world adds a net of the leg's own."""
        for each in (self, *self.twins):
            if each.own_pace:  # the leg ended in the middle of its loop
                self.outcome.bytes_over_time.append((self.now(), self.outcome.bytes_sent))
            each.leg += 1
            each.begun = each.step = first
            each._end = self.job.legs.end_of(first)
            each.model.begin_leg()
        self.log.begin_leg()

    @property
    def leg_end(self) -> int:
        """Where this leg ends: with the run, where that was known beforehand, or where the reporter has said."""
        if not self._in_legs:
            return self.last_step
        said = self.said // 2
        if self.begun < said < self._end:
            self._end = said
        return min(self._end, self.last_step)

    # The loop over steps

    async def rounds(self) -> AsyncIterator[int]:
        step, bytes_at = self.begun, self.outcome.bytes_at
        bytes_at[:0] = [0] * (step - len(bytes_at))  # of a rank that joined a run that had begun
        while step < self.leg_end:
            self.step = step
            yield step
            if self.log.sharing is not None:
                await self.log.evaluate_together(step)
            self.log.finish_step(step)
            step += 1

    async def batches(self, *, endless: bool = False) -> AsyncIterator[Batch]:
        data, rank = self.data, self.rank
        first = self.drawn if endless else self.begun
        upcoming = data.ahead(data.batch_of(rank, step) for step in itertools.count(first))
        if rank == self.workers[0] and self.begun == self.job.legs.first:
            replica, workers = self.model.replica, len(self.workers)
            parts = replica.task.accumulate
            warn_of_lone_samples(replica.module, data, workers=workers, parts=parts, steps=self.last_step)
        if not endless:
            async for _ in self.rounds():
                yield next(upcoming)
            return
        outcome, self.own_pace = self.outcome, True
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

    def end_leg_after(self, step: int, *, stops: bool) -> None:
        """Of the reporter: let every rank end this leg after step number `step`; `stops`: and the run too."""
        self.say(2 * (step + 1) + stops)

    @property
    @abstractmethod
    def said(self) -> int:
        """What the reporter has said of this leg: twice its end, and one more if the run stops there. 0: nothing."""

    @abstractmethod
    def say(self, word: int) -> None:
        """Let every rank know it, before this one goes on."""

    @property
    @abstractmethod
    def stop_wanted(self) -> bool:
        """Whether somebody has asked the run to stop, where it is kept."""

    @abstractmethod
    def is_lost(self, rank: int) -> bool: ...

    @abstractmethod
    async def catch_up(self) -> None:
        """Where the run goes on from a checkpoint: come to the time at which this rank was then."""

    @abstractmethod
    def settle(self) -> None:
        """At the end of a leg: let what is still under way come to its end."""

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

    def open_row_board(self, name: str, like: Tensor) -> RowBoard:
        """Where the workers show rows of the size and dtype of `like`, in worlds in which evaluation can be shared."""
        raise NotImplementedError

    @abstractmethod
    def show_progress(self, record: dict[str, Any]) -> None:
        """Tell the driver how far the run has come."""

    @abstractmethod
    def go_on_without(self, rank: int) -> None:
        """The strategy does without a rank that is lost, or late."""

    # Notes

    def note_holds(self, words: str) -> None:
        """Write down what this rank holds of the model. A world adds how its driver hears of it, lest it dies."""
        self.outcome.holds = words

    def tell_news(self) -> None:  # noqa: B027, for it is no duty: where nobody dies there is nothing to do
        """Let the driver have what this rank has written down so far. A world whose ranks may die does so."""

    def span(self, kind: Kind, start_s: float, end_s: float, peer: int = -1, nbytes: int = 0) -> None:
        self.recorder.packed.append(pack_span(kind, start_s, end_s, peer, nbytes, self.step))

    def samples_by(self, record: dict[str, Any]) -> int:
        """About how many samples had been seen by a record; the run's history counts them exactly."""
        if self.outcome.updates:  # where ranks update at their own pace, a record tells of its own samples
            return int(record["samples"] * record["step"])
        return int(record.get("samples", record["step"] * self.data.batches.batch_size))

    def close(self) -> None:
        """Drop the parts. They refer to their rank, and only the garbage collector could free such a cycle."""
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None
        for each in (self, *self.twins):
            del each.model, each.net, each.log

    def finish(self) -> Outcome:
        """What this rank brings back."""
        self.outcome.memory = self.ledger.peak
        outcome = self.outcome if self.stopped else self.log.finish()
        if self.keeper is not None:
            self.keeper.finish()
        return outcome
