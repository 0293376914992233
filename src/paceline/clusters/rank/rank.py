"""Base of the contexts of all clusters: identity of a rank, and its loop over batches.

A cluster adds waiting, and its own `model` and `net`. The log is the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.data import warn_of_lone_samples
from paceline.clusters.rank.groups import net_number
from paceline.clusters.rank.lifecycle import has_ended_before, run_to_end
from paceline.clusters.rank.logbook import Logbook
from paceline.clusters.rank.member import Member
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.recovery import recovery_of
from paceline.clusters.rank.regroup import live_in_generations
from paceline.clusters.rank.row_board import RowBoard
from paceline.clusters.rank.services import CheckpointSaver, ClusterServices
from paceline.clusters.rank.streams import DELAY_STREAM, PROGRAM_STREAM, stream_of
from paceline.context import Batch, Context
from paceline.faults import Fault
from paceline.model.memory import Ledger
from paceline.system import interrupts
from paceline.trace import Kind, Recorder
from paceline.trace.spans import NO_MESSAGE, pack_span


class Rank(ClusterServices):
    """One rank of a run. Its subclasses satisfy `paceline.context.Context`."""

    # A simulation has thousands of ranks. Slots are faster to read than a dictionary.
    __slots__ = (
        "_end",
        "_has_generations",
        "_rng",
        "begun",
        "checkpoint_writer",
        "complete",
        "delay_rng",
        "drawn",
        "generation",
        "is_reporter",
        "job",
        "joins",
        "ledger",
        "log",
        "members",
        "model",
        "net",
        "outcome",
        "own_pace",
        "position",
        "program_number",
        "rank",
        "recorder",
        "recovery",
        "restored_twins",
        "resumed_s",
        "role",
        "servers",
        "step",
        "step_faults",
        "stopped",
        "twins",
        "workers",
    )

    model: Any
    net: Any
    price: Any
    """Cost of the computations, if it is drawn at random. None if the real time counts."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.role = job.roles[rank]
        workers = job.workers
        self.workers: Sequence[int] = range(workers)
        self.servers: Sequence[int] = range(workers, job.ranks)
        self.is_reporter = rank == job.reporter
        self.delay_rng = stream_of(job.seed, rank, DELAY_STREAM)
        self.generation = 0
        """Number of the current generation, counted since the start of the rank's process."""
        self.begun = self.step = job.generations.first
        """First step of this generation."""
        self.complete = self.begun
        """Number of updates in which this rank took part."""
        self.position = rank
        """Position among the present workers."""
        self.members: Sequence[int] | None = None
        """Members of this generation. None in the first one, which has all ranks."""
        self.program_number = 0
        """Number of earlier programs in this generation of members."""
        self.joins = False
        """Whether this rank is new in a run that others have begun, and not yet a member."""
        self.recovery = recovery_of(job.state_at) if job.regroups else None
        self._has_generations = job.generations.are_many
        self._end = job.generations.end_of(self.begun)
        self.drawn = self.begun
        """Batches that this rank has drawn, if it runs independently."""
        self.own_pace = False
        self.recorder = Recorder(rank, self.role)
        self.outcome = Outcome(rank=rank)
        self.ledger = Ledger()
        """Memory held by this rank, including its twins."""
        self.log = Logbook(self)
        self.twins: list[Rank] = []
        """Twins of this rank: see `Learner.twin`."""
        self._rng: np.random.Generator | None = None
        self.checkpoint_writer: CheckpointSaver | None = None
        """Checkpoint writer. None if the run has no checkpoints."""
        self.resumed_s = 0.0
        """Seconds of the run before this rank resumed from a checkpoint."""
        self.stopped = False
        """Whether the run has stopped before its end, to be resumed later."""
        self.step_faults: dict[int, list[Fault]] = {}
        """Faults to inject into this rank, by the rank's own step in which they occur."""
        self.restored_twins: list[Callable[[Any], None]] = []
        """Functions that restore each twin when it is created, if the run resumes from a checkpoint."""

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = stream_of(self.job.seed, self.rank, PROGRAM_STREAM)
        return self._rng

    # Lifecycle

    async def live(self) -> Any:
        """Run the program for each generation until the end of the run. Return the result of the last generation."""
        await self.catch_up()
        if has_ended_before(self):
            await self.log.evaluations.look_again()
            return None
        return await (live_in_generations if self.job.regroups else run_to_end)(self)

    def run_program(self, context: Rank | Member) -> Awaitable[Any]:
        return cast(Awaitable[Any], self.job.program(self.rank)(cast(Context, context)))

    def begin_generation(self, first: int) -> None:
        """Begin a generation. No operation is in flight. A cluster adds a separate net for the generation."""
        for each in (self, *self.twins):
            each.generation += 1
            each.step = first
        self.begin_next_program(first)

    def begin_next_program(self, first: int) -> None:
        """Begin the next program, with step `first`, in the same generation of members."""
        for each in (self, *self.twins):
            if each.own_pace:  # the program ended in the middle of its loop
                self.outcome.bytes_over_time.append((self.now(), self.outcome.bytes_sent))
            each.program_number += 1
            each.model.begin_generation()
        self.log.begin_generation()
        self.renew_net()
        self.start_at(first)

    def start_at(self, first: int) -> None:
        """Let the program start with step `first`."""
        for each in (self, *self.twins):
            each.begun = first
            each._end = self.job.generations.end_of(first)
        if self.recovery is not None:
            self.recovery.at_program_start(self)

    @property
    def net_number(self) -> int:
        """Number of the nets of this program. No message of another program of the run matches."""
        return net_number(self.generation, self.program_number) if self.job.regroups else self.generation

    @property
    def generation_end(self) -> int:
        """End of this generation: the end of the run, the planned end, or the end that the reporter has announced."""
        if not self._has_generations:
            return self.last_step
        announced = self.announced_end // 2
        if self.begun < announced < self._end:
            self._end = announced
        return min(self._end, self.last_step)

    # The loop over steps

    async def rounds(self) -> AsyncIterator[int]:
        step, bytes_at = self.begun, self.outcome.bytes_at
        bytes_at[:0] = [0] * (step - len(bytes_at))  # skip the steps before this rank joined the run
        while step < self.generation_end:
            self.step = step
            interrupts.safe_point()
            if self.step_faults:
                await self._meet_faults(step)
            if self.recovery is not None:
                self.stop_if_members_changed()
                self.recovery.at_step(self)
            yield step
            if self.log.evaluations.sharing is not None:
                await self.log.evaluations.share(step)
            self.log.finish_step(step)
            step += 1

    async def batches(
        self, own: Iterator[Batch] | None = None, *, endless: bool = False
    ) -> AsyncIterator[Batch]:
        data, rank = self.data, self.rank
        if own is not None:
            for batch in data.ahead(own):
                yield batch
            return
        first = self.drawn if endless else self.begun
        upcoming = data.ahead(map(partial(data.batch_of, self.position), itertools.count(first)))
        if rank == self.workers[0] and self.begun == self.job.generations.first:
            replica = self.model.replica
            parts, workers = replica.task.accumulate, len(self.workers)
            if replica.task.sync_batch_norm:
                workers = 1  # the whole batch has statistics, however small the slices are
            warn_of_lone_samples(replica.module, data, workers=workers, parts=parts, steps=self.last_step)
        if not endless:
            async for _ in self.rounds():
                yield next(upcoming)
            return
        outcome, self.own_pace = self.outcome, True
        for batch in upcoming:
            self.step = batch.step
            interrupts.safe_point()
            if self.step_faults:
                await self._meet_faults(batch.step)
            yield batch
            outcome.bytes_over_time.append((self.now(), outcome.bytes_sent))

    async def _meet_faults(self, step: int) -> None:
        """Inject the faults of a step. They do not occur again if the step is repeated."""
        for fault in self.step_faults.pop(step, ()):
            await self.meet_fault(fault)

    @property
    def batch_of(self) -> Callable[[int, int], Batch]:
        return self.data.batch_of

    @property
    def targets(self) -> Sequence[Any]:
        return self.data.samples.targets

    def _observer(self, board: RowBoard) -> Observer:
        workers = self.workers
        return Observer(board, self.position, range(len(workers)), lambda place: self.is_lost(workers[place]))

    # Records

    def note_holds(self, words: str) -> None:
        """Store the description of what this rank holds. A cluster also sends it to the driver, in case the rank
        dies."""
        self.outcome.holds = words

    def tell_news(self) -> None:
        """Send new records to the driver. Only needed in clusters with ranks that may die."""

    def tell_dropped(self, first: int) -> None:
        """Tell the driver that the records of steps from `first` on are dropped."""

    def span(
        self,
        kind: Kind,
        start_s: float,
        end_s: float,
        peer: int = -1,
        nbytes: int = 0,
        message: int = NO_MESSAGE,
    ) -> None:
        """Record a span. `message` is the id of its message or meeting."""
        self.recorder.packed.append(pack_span(kind, start_s, end_s, peer, nbytes, self.step, message))

    def samples_by(self, record: dict[str, Any]) -> int:
        """Return the approximate number of samples at a record. The run's history counts them exactly."""
        if self.outcome.updates:  # a record of an independent update has its own samples only
            return int(record["samples"] * record["step"])
        return int(record.get("samples", record["step"] * self.data.batches.batch_size))

    def close(self) -> None:
        """Delete the parts. They refer to their rank, a cycle that only the garbage collector could free."""
        if self.checkpoint_writer is not None:
            self.checkpoint_writer.close()
            self.checkpoint_writer = None
        for each in (self, *self.twins):
            del each.model, each.net, each.log

    def finish(self) -> Outcome:
        """Return the outcome of this rank."""
        self.outcome.memory = self.ledger.peak
        outcome = self.log.break_off() if self.stopped else self.log.finish()
        if self.checkpoint_writer is not None:
            self.checkpoint_writer.finish()
        return outcome
