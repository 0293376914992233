"""What the contexts of all worlds have in common: who a rank is, its batches, its record of the run.

A world adds how it waits, sends and computes.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from paceline.clusters.job import Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.rank.observer import Observer
from paceline.context import Batch
from paceline.errors import ConfigurationError, GradientNotFiniteError, LossNotFiniteError
from paceline.replica.batches import GlobalBatches, Samples
from paceline.replica.replica import Replica
from paceline.trace import Kind, Recorder
from paceline.trace.spans import pack_span

__all__ = ["DELAY_STREAM", "Node"]

_log = logging.getLogger("paceline")

# Random streams: each purpose has its own, so that draws for one do not change those for another.
PROGRAM_STREAM, DELAY_STREAM = 1, 2


def _stream(seed: int, rank: int, purpose: int) -> np.random.Generator:
    # Same stream as default_rng([seed, rank, purpose]), but twice as fast to create.
    return np.random.default_rng(np.array([seed, rank, purpose], dtype=np.uint32))


class Node(ABC):
    """One rank of a run. Its subclasses satisfy `paceline.context.Context`."""

    # A simulation has thousands of them, and finds what is in a slot quicker than what is in a dictionary.
    __slots__ = (
        "_collectives",
        "_evaluation_s",
        "_observer",
        "_replica",
        "_reported",
        "_rng",
        "_seen_metric",
        "delay_rng",
        "is_reporter",
        "job",
        "loss",
        "outcome",
        "peers",
        "rank",
        "recorder",
        "role",
        "servers",
        "step",
        "workers",
    )

    def __init__(self, job: Job, rank: int, replica: Replica | None) -> None:
        self.job = job
        self.rank = rank
        self.role = job.roles[rank]
        workers = job.workers
        self.workers: Sequence[int] = range(workers)
        self.servers: Sequence[int] = range(workers, job.ranks)
        self.is_reporter = rank == job.reporter
        self.peers: Sequence[int] = range(job.ranks)
        self.delay_rng = _stream(job.seed, rank, DELAY_STREAM)
        self.step = 0
        self.loss = math.nan
        self.recorder = Recorder(rank, self.role)
        self.outcome = Outcome(rank=rank)
        self._replica = replica
        self._reported: dict[str, float] = {}
        self._evaluation_s = 0.0
        self._seen_metric: float | None = None
        self._observer: Observer | None = None
        self._collectives: dict[int, int] = {}
        self._rng: np.random.Generator | None = None

    def twin(self) -> Self:
        _ = self.rng  # one stream for both
        other = copy.copy(self)
        other._replica = self.replica.twin()
        return other

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = _stream(self.job.seed, self.rank, PROGRAM_STREAM)
        return self._rng

    def count_collective(self, group_number: int) -> int:
        count = self._collectives.get(group_number, 0)
        self._collectives[group_number] = count + 1
        return count & 0xFFFF

    # What is learned

    @property
    def steps(self) -> int:
        return self.last_step

    @property
    def replica(self) -> Replica:
        if self._replica is None:
            raise ConfigurationError(
                "task", "is needed for batches, gradients and updates", None, "use pl.train"
            )
        return self._replica

    @property
    def parameters(self) -> Tensor:
        return self.replica.parameters

    @property
    def gradient(self) -> Tensor:
        return self.replica.gradient

    @property
    def buffers(self) -> Sequence[Tensor]:
        return self.replica.buffers

    @property
    def clips(self) -> bool:
        return self.replica.task.clip_norm is not None

    def advance_schedule(self, updates: int) -> None:
        self.replica.advance_schedule(updates)

    def reset_optimizer(self) -> None:
        self.replica.reset_optimizer()

    @property
    def moments(self) -> Sequence[Tensor]:
        return self.replica.moments()

    @property
    def sample_count(self) -> int:
        return self.training_samples.length

    @property
    def targets(self) -> np.ndarray:
        return self.training_samples.targets()

    def shards(self, parts: int) -> Sequence[slice]:
        return self.replica.shards(parts)

    def place(self, *, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        self.replica.place(parameters, gradient)

    # The loop over steps

    @property
    @abstractmethod
    def global_batches(self) -> GlobalBatches: ...

    @property
    @abstractmethod
    def training_samples(self) -> Samples: ...

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
    def now(self) -> float: ...

    @abstractmethod
    def count_update(self) -> int: ...

    @abstractmethod
    def open_parameter_board(self) -> Observer:
        """Where the workers show their parameters to the run."""

    async def rounds(self) -> AsyncIterator[int]:
        step = 0
        while step < self.last_step:
            self.step = step
            yield step
            self._finish_step(step)
            step += 1

    async def batches(self, *, endless: bool = False) -> AsyncIterator[Batch]:
        if not endless:
            async for step in self.rounds():
                yield self.batch_of(self.rank, step)
            return
        outcome = self.outcome
        for step in itertools.count():
            self.step = step
            yield self.batch_of(self.rank, step)
            outcome.bytes_over_time.append((self.now(), outcome.bytes_sent))

    def batch_of(self, worker: int, step: int) -> Batch:
        return self.global_batches.slice(step, worker, len(self.workers))

    def inspects(self, step: int) -> bool:
        return step + 1 >= self.last_step or self._evaluation_is_due(step)

    @property
    def observer(self) -> Observer:
        if self._observer is None:
            self._observer = self.open_parameter_board()
        return self._observer

    def show(self, parameters: Tensor | None = None) -> None:
        self.observer.show(self.parameters if parameters is None else parameters)

    async def observe(self, step: int, *, force: bool = False) -> None:
        if not force and not self.inspects(step):
            return
        start_s = self.now()
        self.show()
        self._leave_out(start_s)
        await self.observer.meet()
        if self.is_reporter:
            self._look(step)
        await self.observer.part()

    def _look(self, step: int) -> None:
        """All workers have stopped after this step, so that this may be the run's last."""
        start_s = self.now()
        self.report(consensus=self.observer.distance())
        self._leave_out(start_s)
        if self._evaluation_is_due(step):
            self._seen_metric = self._evaluate()
            if self._reaches_target(self._seen_metric):
                self.end_after(step)

    def note_own_metric(self) -> None:
        if self._evaluates:
            self.outcome.own_metric = self._evaluate(own=True)

    def note_staleness(self, staleness: int) -> None:
        histogram = self.outcome.staleness
        histogram[staleness] = histogram.get(staleness, 0) + 1

    def note_lost(self, rank: int) -> None:
        self.outcome.lost.append((rank, self.step))
        _log.warning("rank %d is lost in step %d; the run goes on without it", rank, self.step)

    def report(self, **values: float) -> None:
        self._reported.update(values)

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        updates = self.outcome.updates
        before = updates[-1]["step"] if updates else 0
        # Others go on while one evaluates, so that its time is the run's; not where there is only one.
        left_out_s = self._evaluation_s if len(self.workers) == 1 else 0.0
        reported, self._reported = self._reported, {}
        record: dict[str, Any] = {"loss": loss, "samples": samples, "metric": None, "extra": reported}
        record.update(step=step, seconds=self.now() - left_out_s)
        updates.append(record)
        if not self.is_reporter:
            return
        every = self.job.evaluate_every
        # The last evaluation comes in `finish`, when everybody has ended.
        evaluates = self._evaluates and step // every > before // every and step < self.last_step
        if self._observer is not None and (evaluates or force):
            record["extra"]["consensus"] = self._observer.distance()
        if evaluates:
            record["metric"] = self._evaluate()
            if self._reaches_target(record["metric"]):
                self.end_after(step)
        self.show_progress(record)

    def _finish_step(self, step: int) -> None:
        self.outcome.bytes_at.append(self.outcome.bytes_sent)
        if not self.is_reporter:
            return
        reported, self._reported = self._reported, {}
        seconds = self.now() - self._evaluation_s
        record: dict[str, Any] = {"step": step + 1, "seconds": seconds, "metric": None, "extra": reported}
        for key in ("loss", "samples"):
            if key in reported:
                record[key] = reported.pop(key)
        if self._seen_metric is not None:
            record["metric"], self._seen_metric = self._seen_metric, None
        elif self._evaluation_is_due(step):
            record["metric"] = self._evaluate()
            if self._reaches_target(record["metric"]):
                # The others may have begun the next step, but none can have ended it without this rank: so that
                # step is the last, for everybody, in every world.
                self.end_after(step + 1)
        self.outcome.records.append(record)
        self.show_progress(record)

    @property
    def _evaluates(self) -> bool:
        return self.test_samples is not None and self.job.evaluate_every > 0

    def _evaluation_is_due(self, step: int) -> bool:
        every = self.job.evaluate_every
        if not every or self.test_samples is None:
            return False
        return (step + 1) % every == 0 or step + 1 == self.last_step

    def _evaluate(self, *, own: bool = False) -> float:
        """The metric of the run's model, or of this worker's own."""
        assert self.test_samples is not None
        assert self.job.task is not None
        metric = self.job.task.metric_function()
        assert metric is not None
        start_s = self.now()
        value = self.replica.evaluate(self.test_samples, metric, None if own else self._mean())
        self._leave_out(start_s)
        return value

    def _leave_out(self, start_s: float) -> None:
        """What has happened since then was for the measurement's sake, and is no time of the run's."""
        end_s = self.now()
        self._evaluation_s += end_s - start_s
        self.span(Kind.EVALUATE, start_s, end_s)

    def _mean(self) -> Tensor | None:
        """The workers' mean, where each has parameters of its own."""
        return self._observer.mean() if self._observer is not None else None

    def _reaches_target(self, metric: float) -> bool:
        target = self.job.task.target if self.job.task else None
        return self.job.stop_at_target and target is not None and metric >= target

    def samples_by(self, record: dict[str, Any]) -> int:
        """About how many samples had been seen by a record; the run's history counts them exactly."""
        if self.outcome.updates:  # where ranks update at their own pace, a record tells of its own samples
            return int(record["samples"] * record["step"])
        return int(record.get("samples", record["step"] * self.global_batches.batch_size))

    @abstractmethod
    def show_progress(self, record: dict[str, Any]) -> None:
        """Tell the driver how far the run has come."""

    # Notes

    def span(self, kind: Kind, start_s: float, end_s: float, peer: int = -1, nbytes: int = 0) -> None:
        self.recorder.packed.append(pack_span(kind, start_s, end_s, peer, nbytes, self.step))

    def note_loss(self, batch: Batch, loss: float) -> None:
        """Write down how a computation ended; refuse it if its loss or its gradient is not finite."""
        if not math.isfinite(loss):
            raise LossNotFiniteError(self.rank, self.step, loss)
        if self.replica.not_finite is not None:
            raise GradientNotFiniteError(self.rank, self.step, self.replica.not_finite)
        self.loss = loss
        self.outcome.losses.append((batch.step, loss, batch.count))

    def finish(self) -> Outcome:
        """What this rank brings back."""
        outcome = self.outcome
        outcome.reported = self._reported
        outcome.threads = torch.get_num_threads()
        if not outcome.records and self.is_reporter and self._evaluates:
            outcome.metric = self._evaluate() if self._seen_metric is None else self._seen_metric
        outcome.seconds = self.now()
        outcome.spans = self.recorder.pack()
        if self._replica is not None and self.is_reporter:
            outcome.state = self._replica.state(self._mean())
        return outcome
