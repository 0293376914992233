"""Log of a rank: its records of the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.clusters.rank.endings import Endings
from paceline.clusters.rank.evaluations import Evaluations
from paceline.errors import PeerLost

if TYPE_CHECKING:
    from paceline.clusters.base.outcome import Outcome
    from paceline.clusters.rank.rank import Rank

_log = logging.getLogger("paceline")


class Logbook:
    """Log of one rank. It satisfies `paceline.context.Log` in every cluster."""

    __slots__ = ("_endings", "_rank", "_reported", "_seen", "evaluations")

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._reported: dict[str, float] = {}
        self._seen: dict[str, float] | None = None  # metrics of this step, if already evaluated
        self.evaluations = Evaluations(rank)
        self._endings = Endings(rank)

    # Called by a strategy

    @property
    def steps(self) -> int:
        return self._rank.generation_end

    def report(self, **values: float) -> None:
        if self._reported:
            self._reported.update(values)
        else:
            self._reported = values

    def inspects(self, step: int, *, average: bool = False) -> bool:
        """With `average`, also return True if the run maintains a moving average, which needs all weights.

        A reporter that frees parameters needs them for the average in any case.
        """
        task = self._rank.job.task
        follows = task is not None and task.ema is not None
        if follows and (average or self._rank.model.replica.holding.frees_parameters):
            return True
        return step + 1 >= self._rank.generation_end or self.evaluations.is_due(step)

    async def observe(
        self,
        step: int | None = None,
        *,
        force: bool = False,
        own_metric: bool = False,
        parameters: Tensor | None = None,
    ) -> None:
        if step is None:
            self.evaluations.publish(parameters)
            return
        self._endings.observes = True
        ends = step + 1 >= self._rank.last_step
        # Independent workers call this at the end of each generation. Only the end of the run is evaluated.
        if not ends and (self._rank.own_pace or not (force or self.evaluations.is_due(step))):
            await self._meet(step)
            return
        start_s = self._rank.now()
        self.evaluations.publish(parameters)
        self.evaluations.leave_out(start_s)
        await self.evaluations.observer.meet()
        if self._rank.is_reporter:
            self._look(step)
        await self.evaluations.observer.part()
        if own_metric and self.evaluations.is_enabled and step + 1 >= self._rank.last_step:
            self._rank.outcome.own_metric = next(iter(self.evaluations.evaluate(own=True).values()))

    def note_staleness(self, staleness: int) -> None:
        histogram = self._rank.outcome.staleness
        histogram[staleness] = histogram.get(staleness, 0) + 1

    def note_lost(self, rank: int) -> None:
        step, lost = self._rank.step, self._rank.outcome.lost
        # A program without a task has no records and no roles. It handles losses itself.
        if self._rank.job.task is not None and not self._rank.job.can_lose(rank):
            where = f"rank {self._rank.rank} noted it in step {step}"
            raise PeerLost(rank, "the run cannot continue without this rank", where)
        if any(rank == other for other, _ in lost):
            self._rank.go_on_without(rank)  # lost in an earlier generation
            return
        lost.append((rank, step))
        _log.warning("rank %d is lost in step %d; the run continues without it", rank, step)
        self._rank.go_on_without(rank)

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        rank = self._rank
        self.evaluations.refuse_plateaus()
        updates = rank.outcome.updates
        before = updates[-1]["step"] if updates else 0
        # With several workers the others continue during an evaluation, so its time counts. With one worker it does
        # not.
        left_out_s = self.evaluations.seconds if len(rank.workers) == 1 else 0.0
        if rank.is_reporter:
            self._endings.before_own_update(step)
        reported, self._reported = self._reported, {}
        record = self._draft(step - 1, reported)
        record.update(loss=loss, samples=samples, seconds=rank.now() - left_out_s)
        rank.outcome.logged = []
        updates.append(record)
        if not rank.is_reporter:
            rank.tell_news()
            return
        self.evaluations.follow(step)
        every = rank.job.evaluate_every
        # The last evaluation is done in `finish`, when all ranks have ended.
        evaluates = self.evaluations.is_enabled and step // every > before // every and step < rank.last_step
        distance = self.evaluations.distance() if evaluates or force else None
        if distance is not None:
            record["extra"]["consensus"] = distance
        if evaluates:
            self._enter(record, self.evaluations.evaluate())
        self._endings.after_own_update(step, ends=self._ends_with(record))
        rank.show_progress(record)

    # Called by the step loop

    def begin_generation(self) -> None:
        self._seen = None
        self._endings.begin_generation()

    def finish_step(self, step: int) -> None:
        rank, outcome = self._rank, self._rank.outcome
        outcome.bytes_at.append(outcome.bytes_sent)
        if rank.checkpoint_writer is not None:
            rank.checkpoint_writer.prepare(step)
        if not rank.is_reporter:
            rank.tell_news()
            return
        self.evaluations.follow(step + 1)
        self._record_step(step)
        if rank.job.regroups:
            rank.tell_news()

    def take_over(self, recorded: int, complete: int) -> None:
        """Begin to report a run of which `complete` steps are complete. Lost reporters have left `recorded` records.

        Write the records that are missing. A step that is not the last one cannot be evaluated any more.
        """
        records = self._rank.outcome.records
        recorded = max(recorded, records[-1]["step"] if records else 0)
        for step in range(recorded, complete):
            self.evaluations.follow(step + 1)
            self._record_step(step, evaluates=step + 1 == complete)

    def _record_step(self, step: int, *, evaluates: bool = True) -> None:
        rank, outcome = self._rank, self._rank.outcome
        reported, self._reported = self._reported, {}
        if rank.job.task is not None and rank.job.task.schedule is not None:
            reported |= rank.model.replica.updates.learning_rates()
        record = self._draft(step, reported)
        ends = False
        if self._seen is not None:
            self._enter(record, self._seen)
            self._seen = None
        elif evaluates and self.evaluations.is_due(step):
            metrics = self.evaluations.evaluate()
            self.evaluations.announce(step + 1, metrics)
            self._enter(record, metrics)
            ends = self._ends_with(record)
        elif rank.job.watch.steps:
            ends = self._ends_with(record)
        outcome.records.append(record)
        if ends or rank.checkpoint_writer is not None:
            self._endings.after_step(step, ends=ends)
        rank.show_progress(record)

    def break_off(self) -> Outcome:
        """Return the outcome of this rank in a run that stops before its end. The checkpoint has the model."""
        outcome = self._rank.outcome
        outcome.reports = self._rank.is_reporter
        outcome.seconds = self._rank.now()
        outcome.spans = self._rank.recorder.pack()
        return outcome

    def finish(self) -> Outcome:
        """Return the outcome of this rank."""
        rank, outcome = self._rank, self._rank.outcome
        outcome.reports, outcome.reported = rank.is_reporter, self._reported
        outcome.counted = min(outcome.counted, rank.last_step)  # a rank may count one update too many
        if outcome.updates:
            outcome.logged = []  # a batch without an update; the others are in their records
        outcome.threads = torch.get_num_threads()
        if not outcome.records and rank.is_reporter and self.evaluations.is_enabled:
            self._evaluate_at_the_end()
        outcome.seconds = rank.now()
        outcome.spans = rank.recorder.pack()
        if rank.is_reporter:
            outcome.state = rank.model.finish(self.evaluations.mean())
            average = self.evaluations.average
            if average is not None:
                outcome.ema_state = rank.model.finish(average)
        return outcome

    def _evaluate_at_the_end(self) -> None:
        """Evaluate after all ranks have ended. Independent ranks wrote their last records before that."""
        rank, outcome = self._rank, self._rank.outcome
        metrics = self.evaluations.evaluate() if self._seen is None else self._seen
        outcome.metric, *_ = metrics.values()
        outcome.reported |= dict(list(metrics.items())[1:])
        if self._seen is None:
            record = self._draft(rank.last_step - 1, dict(outcome.reported))
            self._enter(record, metrics)
            self._consult(record)

    def _draft(self, step: int, extra: dict[str, float]) -> dict[str, Any]:
        """Return the record of a step without its metric. `extra` contains the reported values and is modified."""
        rank, outcome = self._rank, self._rank.outcome
        if outcome.logged and outcome.logged[-1][0] == rank.step:
            extra.update(outcome.logged[-1][2])
        seconds = rank.now() - self.evaluations.seconds
        record: dict[str, Any] = {"step": step + 1, "seconds": seconds, "metric": None, "extra": extra}
        if outcome.updates:  # independent updates: use the values of the last own update
            record.update({key: outcome.updates[-1][key] for key in ("loss", "samples")})
        if "loss" in extra:
            record["loss"] = extra.pop("loss")
        if "samples" in extra:
            record["samples"] = extra.pop("samples")
        return record

    # Evaluating the model

    def _look(self, step: int) -> None:
        """Evaluate on the reporter. All workers have stopped after this step, so it can be the run's last one."""
        start_s = self._rank.now()
        self.report(consensus=self.evaluations.observer.distance())
        self.evaluations.leave_out(start_s)
        ends = False
        if self.evaluations.is_due(step):
            self.evaluations.follow(step + 1)
            self._seen = self.evaluations.evaluate()
            self.evaluations.announce(step + 1, self._seen)
            record = self._draft(step, dict(self._reported))
            self._enter(record, self._seen)
            ends = self._ends_with(record)
        self._endings.at_meeting(step, ends=ends)

    def _enter(self, record: dict[str, Any], metrics: dict[str, float]) -> None:
        """Write metrics into a record. The first one is the main metric."""
        (_, record["metric"]), *others = metrics.items()
        record["extra"].update(others)

    # Ending early

    def _ends_with(self, record: dict[str, Any]) -> bool:
        """Return whether a record ends the run: the target is reached, or a callback requests it."""
        return self._consult(record) or self._endings.reaches_target(record["metric"])

    async def _meet(self, step: int) -> None:
        """Stop all independent workers together, so that the reporter can end the generation here."""
        if self._endings.meets_at(step):
            await self.evaluations.observer.meet()
            if self._rank.is_reporter:
                self._endings.at_meeting(step)
            await self.evaluations.observer.part()

    def _consult(self, record: dict[str, Any]) -> bool:
        """Send a record to the driver's callbacks, if they watch for it. Return whether they request the end of the
        run."""
        rank = self._rank
        wants = rank.job.watch
        evaluated = record["metric"] is not None
        if not wants.steps and not (wants.evaluations and evaluated):
            return False
        start_s = rank.now()
        losses = rank.outcome.losses
        shown = dict(record, samples=rank.samples_by(record), bytes=rank.outcome.bytes_sent)
        shown.setdefault("loss", losses[-1][1] if losses else float("nan"))
        state = None
        if evaluated and wants.state:
            state = rank.model.replica.inspection.state(self.evaluations.parameters())
        stops = rank.consult(shown, state)
        self.evaluations.leave_out(start_s)
        return stops

    # Saving and restoring

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = self.evaluations.keep()
        return tensors, {**facts, "reported": self._reported}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._reported = dict(facts["reported"])
        self.evaluations.restore(tensors, facts)
