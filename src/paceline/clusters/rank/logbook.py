"""What a rank writes down: its record of the run, evaluations, what it saw of others."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.clusters.rank.observer import Observer
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.outcome import Outcome
    from paceline.clusters.rank.rank import Rank

__all__ = ["Logbook"]

_log = logging.getLogger("paceline")


class Logbook:
    """One rank's record. It satisfies `paceline.context.Log` in every world."""

    __slots__ = ("_evaluation_s", "_observer", "_rank", "_reported", "_seen_metric")

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._reported: dict[str, float] = {}
        self._evaluation_s = 0.0
        self._seen_metric: float | None = None
        self._observer: Observer | None = None

    # What a strategy writes

    @property
    def steps(self) -> int:
        return self._rank.last_step

    def report(self, **values: float) -> None:
        self._reported.update(values)

    def inspects(self, step: int) -> bool:
        return step + 1 >= self._rank.last_step or self._evaluation_is_due(step)

    def show(self, parameters: Tensor | None = None) -> None:
        self.observer.show(self._rank.model.parameters if parameters is None else parameters)

    async def observe(self, step: int, *, force: bool = False, own_metric: bool = False) -> None:
        if not force and not self.inspects(step):
            return
        start_s = self._rank.now()
        self.show()
        self._leave_out(start_s)
        await self.observer.meet()
        if self._rank.is_reporter:
            self._look(step)
        await self.observer.part()
        if own_metric and self._evaluates and step + 1 >= self._rank.last_step:
            self._rank.outcome.own_metric = self._evaluate(own=True)

    def note_staleness(self, staleness: int) -> None:
        histogram = self._rank.outcome.staleness
        histogram[staleness] = histogram.get(staleness, 0) + 1

    def note_lost(self, rank: int) -> None:
        step = self._rank.step
        self._rank.outcome.lost.append((rank, step))
        _log.warning("rank %d is lost in step %d; the run goes on without it", rank, step)
        self._rank.go_on_without(rank)

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        rank = self._rank
        updates = rank.outcome.updates
        before = updates[-1]["step"] if updates else 0
        # Others go on while one evaluates, so that its time is the run's; not where there is only one.
        left_out_s = self._evaluation_s if len(rank.workers) == 1 else 0.0
        reported, self._reported = self._reported, {}
        record: dict[str, Any] = {"loss": loss, "samples": samples, "metric": None, "extra": reported}
        record.update(step=step, seconds=rank.now() - left_out_s)
        updates.append(record)
        if not rank.is_reporter:
            return
        every = rank.job.evaluate_every
        # The last evaluation comes in `finish`, when everybody has ended.
        evaluates = self._evaluates and step // every > before // every and step < rank.last_step
        if self._observer is not None and (evaluates or force):
            record["extra"]["consensus"] = self._observer.distance()
        if evaluates:
            record["metric"] = self._evaluate()
            if self._reaches_target(record["metric"]):
                rank.end_after(step)
        rank.show_progress(record)

    # What the loop writes

    def finish_step(self, step: int) -> None:
        rank, outcome = self._rank, self._rank.outcome
        outcome.bytes_at.append(outcome.bytes_sent)
        if not rank.is_reporter:
            return
        reported, self._reported = self._reported, {}
        seconds = rank.now() - self._evaluation_s
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
                rank.end_after(step + 1)
        outcome.records.append(record)
        rank.show_progress(record)

    def finish(self) -> Outcome:
        """What this rank brings back."""
        rank, outcome = self._rank, self._rank.outcome
        outcome.reported = self._reported
        outcome.threads = torch.get_num_threads()
        if not outcome.records and rank.is_reporter and self._evaluates:
            outcome.metric = self._evaluate() if self._seen_metric is None else self._seen_metric
        outcome.seconds = rank.now()
        outcome.spans = rank.recorder.pack()
        if rank.is_reporter:
            outcome.state = rank.model.finish(self._mean())
        return outcome

    # Looking at the model

    @property
    def observer(self) -> Observer:
        if self._observer is None:
            self._observer = self._rank.open_parameter_board()
        return self._observer

    def _look(self, step: int) -> None:
        """All workers have stopped after this step, so it can be made the run's last."""
        start_s = self._rank.now()
        self.report(consensus=self.observer.distance())
        self._leave_out(start_s)
        if self._evaluation_is_due(step):
            self._seen_metric = self._evaluate()
            if self._reaches_target(self._seen_metric):
                self._rank.end_after(step)

    @property
    def _evaluates(self) -> bool:
        return self._rank.test_samples is not None and self._rank.job.evaluate_every > 0

    def _evaluation_is_due(self, step: int) -> bool:
        every = self._rank.job.evaluate_every
        if not every or self._rank.test_samples is None:
            return False
        return (step + 1) % every == 0 or step + 1 == self._rank.last_step

    def _evaluate(self, *, own: bool = False) -> float:
        """The metric of the run's model, or of this worker's own."""
        rank = self._rank
        assert rank.test_samples is not None
        assert rank.job.task is not None
        metric = rank.job.task.metric_function()
        assert metric is not None
        rank.outcome.test_samples = rank.test_samples.length
        start_s = rank.now()
        with rank.clock_stopped() if rank.is_reporter else contextlib.nullcontext():
            parameters = None if own else self._mean()
            value: float = rank.model.replica.evaluate(rank.test_samples, metric, parameters)
        self._leave_out(start_s)
        return value

    def _leave_out(self, start_s: float) -> None:
        """Take the time since then off the run's clock: it was spent on measuring."""
        end_s = self._rank.now()
        self._evaluation_s += end_s - start_s
        self._rank.span(Kind.EVALUATE, start_s, end_s)

    def _mean(self) -> Tensor | None:
        """The workers' mean, where each has parameters of its own."""
        return self._observer.mean() if self._observer is not None else None

    def _reaches_target(self, metric: float) -> bool:
        job = self._rank.job
        return job.stop_at_target and job.task is not None and job.task.reaches_target(metric)
