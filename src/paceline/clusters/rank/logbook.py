"""Log of a rank: its records of the run, evaluations, and observations of other ranks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.clusters.rank.averaging import Averaging
from paceline.clusters.rank.endings import Endings
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.sharing import SharedEvaluation
from paceline.errors import ConfigurationError, PeerLost
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.base.outcome import Outcome
    from paceline.clusters.rank.rank import Rank

_log = logging.getLogger("paceline")


class Logbook:
    """Log of one rank. It satisfies `paceline.context.Log` in every cluster."""

    __slots__ = (
        "_announced",
        "_average",
        "_endings",
        "_evaluation_s",
        "_observer",
        "_rank",
        "_reported",
        "_seen",
        "_together",
        "_was_of_all",
        "sharing",
    )

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._reported: dict[str, float] = {}
        self._evaluation_s = 0.0
        self._seen: dict[str, float] | None = None  # metrics of this step, if already evaluated
        self._together: dict[str, float] | None = None  # metrics of this step, if evaluated by all workers
        self.sharing: SharedEvaluation | None = None
        """Evaluation shared among the workers. A cluster where that is faster sets it before the run starts."""
        self._observer: Observer | None = None
        self._announced: float | None = None  # the last metric, if a schedule waits for it
        self._was_of_all = False  # whether the run before the resume used all workers' parameters
        self._endings = Endings(rank)
        decay = rank.job.task.ema if rank.is_reporter and rank.job.task is not None else None
        self._average = None if decay is None else Averaging(rank, decay)

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
        return step + 1 >= self._rank.generation_end or self._evaluation_is_due(step)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Subtract the time spent in this context from the run's clock."""
        start_s = self._rank.now()
        try:
            yield
        finally:
            self._leave_out(start_s)

    def show(self, parameters: Tensor | None = None) -> None:
        self.observer.show(self._rank.model.parameters if parameters is None else parameters)

    async def observe(self, step: int, *, force: bool = False, own_metric: bool = False) -> None:
        self._endings.observes = True
        ends = step + 1 >= self._rank.last_step
        # Independent workers call this at the end of each generation. Only the end of the run is evaluated.
        if not ends and (self._rank.own_pace or not (force or self._evaluation_is_due(step))):
            await self._meet(step)
            return
        start_s = self._rank.now()
        self.show()
        self._leave_out(start_s)
        await self.observer.meet()
        if self._rank.is_reporter:
            self._look(step)
        await self.observer.part()
        if own_metric and self._evaluates and step + 1 >= self._rank.last_step:
            self._rank.outcome.own_metric = next(iter(self._evaluate(own=True).values()))

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
        _log.warning("rank %d is lost in step %d; the run goes on without it", rank, step)
        self._rank.go_on_without(rank)

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        rank = self._rank
        self._refuse_plateaus()
        updates = rank.outcome.updates
        before = updates[-1]["step"] if updates else 0
        # With several workers the others continue during an evaluation, so its time counts. With one worker it does
        # not.
        left_out_s = self._evaluation_s if len(rank.workers) == 1 else 0.0
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
        if self._average is not None:
            self._average.follow(step)
        every = rank.job.evaluate_every
        # The last evaluation is done in `finish`, when all ranks have ended.
        evaluates = self._evaluates and step // every > before // every and step < rank.last_step
        if self._observer is not None and (evaluates or force):
            record["extra"]["consensus"] = self._observer.distance()
        if evaluates:
            self._enter(record, self._evaluate())
        self._endings.after_own_update(step, ends=self._ends_with(record))
        rank.show_progress(record)

    # Called by the step loop

    def begin_generation(self) -> None:
        self._seen = None
        self._endings.begin_generation()

    async def evaluate_together(self, step: int) -> None:
        """Before `finish_step`: do this worker's part of a shared evaluation, if one is due."""
        if self.sharing is None or not self._evaluation_is_due(step):
            return
        start_s = self._rank.now()
        found = await self.sharing.evaluate()
        self._together = found if self._rank.is_reporter else None
        self._evaluation_s += self._rank.now() - start_s  # the spans are already recorded

    def finish_step(self, step: int) -> None:
        rank, outcome = self._rank, self._rank.outcome
        outcome.bytes_at.append(outcome.bytes_sent)
        if rank.checkpoint_writer is not None:
            rank.checkpoint_writer.prepare(step)
        if not rank.is_reporter:
            rank.tell_news()
            return
        if self._average is not None:
            self._average.follow(step + 1)
        self._record_step(step)
        if rank.job.min_workers is not None:
            rank.tell_news()

    def take_over(self, recorded: int, complete: int) -> None:
        """Begin to report a run of which `complete` steps are complete. Lost reporters have left `recorded` records.

        Write the records that are missing. A step that is not the last one cannot be evaluated any more.
        """
        records = self._rank.outcome.records
        recorded = max(recorded, records[-1]["step"] if records else 0)
        for step in range(recorded, complete):
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
        elif evaluates and self._evaluation_is_due(step):
            metrics = self._evaluate()
            self._announce(step + 1, metrics)
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
        outcome.seconds = self._rank.now()
        outcome.spans = self._rank.recorder.pack()
        return outcome

    def finish(self) -> Outcome:
        """Return the outcome of this rank."""
        rank, outcome = self._rank, self._rank.outcome
        outcome.reported = self._reported
        outcome.counted = min(outcome.counted, rank.last_step)  # a rank may count one update too many
        if outcome.updates:
            outcome.logged = []  # a batch without an update; the others are in their records
        outcome.threads = torch.get_num_threads()
        if not outcome.records and rank.is_reporter and self._evaluates:
            self._evaluate_at_the_end()
        outcome.seconds = rank.now()
        outcome.spans = rank.recorder.pack()
        if rank.is_reporter:
            outcome.state = rank.model.finish(self._mean())
            if self._average is not None and self._average.values is not None:
                outcome.ema_state = rank.model.finish(self._average.values)
        return outcome

    def _evaluate_at_the_end(self) -> None:
        """Evaluate after all ranks have ended. Independent ranks wrote their last records before that."""
        rank, outcome = self._rank, self._rank.outcome
        metrics = self._evaluate() if self._seen is None else self._seen
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
        seconds = rank.now() - self._evaluation_s
        record: dict[str, Any] = {"step": step + 1, "seconds": seconds, "metric": None, "extra": extra}
        if outcome.updates:  # independent updates: use the values of the last own update
            record.update({key: outcome.updates[-1][key] for key in ("loss", "samples")})
        if "loss" in extra:
            record["loss"] = extra.pop("loss")
        if "samples" in extra:
            record["samples"] = extra.pop("samples")
        return record

    # Evaluating the model

    @property
    def observer(self) -> Observer:
        if self._observer is None:
            self._observer = self._rank.open_parameter_board()
        return self._observer

    def _look(self, step: int) -> None:
        """Evaluate on the reporter. All workers have stopped after this step, so it can be the run's last one."""
        start_s = self._rank.now()
        self.report(consensus=self.observer.distance())
        self._leave_out(start_s)
        ends = False
        if self._evaluation_is_due(step):
            if self._average is not None:
                self._average.follow(step + 1)
            self._seen = self._evaluate()
            self._announce(step + 1, self._seen)
            record = self._draft(step, dict(self._reported))
            self._enter(record, self._seen)
            ends = self._ends_with(record)
        self._endings.at_meeting(step, ends=ends)

    @property
    def _evaluates(self) -> bool:
        return self._rank.test_samples is not None and self._rank.job.evaluate_every > 0

    def _evaluation_is_due(self, step: int) -> bool:
        every = self._rank.job.evaluate_every
        if not every or self._rank.test_samples is None:
            return False
        return (step + 1) % every == 0 or step + 1 == self._rank.last_step

    def _evaluate(self, *, own: bool = False) -> dict[str, float]:
        """Return the metrics of the run's model, or of this worker's own parameters."""
        rank = self._rank
        assert rank.test_samples is not None
        rank.outcome.test_samples = rank.test_samples.length
        start_s = rank.now()
        found, self._together = self._together, None
        if found is None:
            with rank.clock_stopped() if rank.is_reporter else contextlib.nullcontext():
                parameters = None if own else self._looked_at()
                found = rank.model.replica.evaluate(rank.test_samples, parameters)
        assert found is not None
        self._leave_out(start_s)
        return found

    def _announce(self, updates: int, metrics: Mapping[str, float]) -> None:
        """Announce the metric after `updates` updates, if a schedule waits for it. Others are not read."""
        rank, every = self._rank, self._rank.job.evaluate_every
        if updates % every == 0 and rank.model.replica.updates.wait_for_metric:
            self._announced = next(iter(metrics.values()))
            rank.announce(updates // every, self._announced)

    def _enter(self, record: dict[str, Any], metrics: dict[str, float]) -> None:
        """Write metrics into a record. The first one is the main metric."""
        (_, record["metric"]), *others = metrics.items()
        record["extra"].update(others)

    def _leave_out(self, start_s: float) -> None:
        """Subtract the time since `start_s` from the run's clock. It was spent on measuring."""
        end_s = self._rank.now()
        self._evaluation_s += end_s - start_s
        self._rank.span(Kind.EVALUATE, start_s, end_s)

    def _mean(self) -> Tensor | None:
        """Return the mean of the workers' parameters. None if no observer is open: all workers share one model."""
        return self._observer.mean() if self._observer is not None else None

    def _looked_at(self) -> Tensor | None:
        """Return the parameters to evaluate. None for the replica's own."""
        return self._mean() if self._average is None else self._average.values

    def _refuse_plateaus(self) -> None:
        """Refuse a schedule that depends on the metric. Independent ranks would receive it at different updates."""
        if self._rank.model.replica.updates.wait_for_metric:
            remedy = "choose a schedule that goes by updates, or a strategy whose workers keep step"
            bound = "must not need a metric where workers update at their own pace"
            raise ConfigurationError("schedule", bound, "ReduceLROnPlateau", remedy)

    # Ending early

    def _ends_with(self, record: dict[str, Any]) -> bool:
        """Return whether a record ends the run: the target is reached, or a callback requests it."""
        return self._consult(record) or self._endings.reaches_target(record["metric"])

    async def _meet(self, step: int) -> None:
        """Stop all independent workers together, so that the reporter can end the generation here."""
        if self._endings.meets_at(step):
            await self.observer.meet()
            if self._rank.is_reporter:
                self._endings.at_meeting(step)
            await self.observer.part()

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
        state = rank.model.replica.state(self._looked_at()) if evaluated and wants.state else None
        stops = rank.consult(shown, state)
        self._leave_out(start_s)
        return stops

    # Saving and restoring

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = ({}, {}) if self._average is None else self._average.keep()
        own = {
            "evaluation_s": self._evaluation_s,
            "reported": self._reported,
            "of_all": self.is_of_all,
            "announced": self._announced,
        }
        return tensors, {**facts, **own}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._evaluation_s = facts["evaluation_s"]
        self._reported = dict(facts["reported"])
        self._was_of_all = facts["of_all"]
        self._announced = facts.get("announced")
        if self._average is not None:
            self._average.restore(tensors, facts)

    @property
    def is_of_all(self) -> bool:
        """Whether the run's model is the mean of all workers' parameters."""
        return self._was_of_all or self._observer is not None

    async def look_again(self) -> None:
        """For a resumed run that had already ended: collect all workers' parameters once more for the reporter."""
        if self._was_of_all and self._rank.rank in self._rank.workers:
            self.show()
            await self.observer.meet()
            await self.observer.part()
