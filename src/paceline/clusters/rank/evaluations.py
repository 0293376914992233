"""Evaluations of the run's model, on one rank: when one is due, its metrics, and its time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from paceline.clusters.rank.averaging import Averaging
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.sharing import SharedEvaluation
from paceline.errors import ConfigurationError
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank


class Evaluations:
    """Evaluations of one rank. Their time is subtracted from the run's clock.

    If workers publish their parameters, the run's model is the mean of these. If the task uses a moving average, it is
    evaluated instead.
    """

    __slots__ = (
        "_announced",
        "_average",
        "_observer",
        "_rank",
        "_shared",
        "_was_of_all",
        "seconds",
        "sharing",
    )

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.seconds = 0.0
        """Time spent on evaluations and other measurements so far."""
        self.sharing: SharedEvaluation | None = None
        """Evaluation shared among the workers. A cluster where that is faster sets it before the run starts."""
        self._shared: dict[str, float] | None = None  # metrics of this step, if evaluated by all workers
        self._observer: Observer | None = None
        self._announced: float | None = None  # the last metric, if a schedule waits for it
        self._was_of_all = False  # whether the run before the resume used all workers' parameters
        decay = rank.job.task.ema if rank.is_reporter and rank.job.task is not None else None
        self._average = None if decay is None else Averaging(rank, decay)

    @property
    def is_enabled(self) -> bool:
        """Whether the run evaluates its model."""
        return self._rank.test_samples is not None and self._rank.job.evaluate_every > 0

    def is_due(self, step: int) -> bool:
        every = self._rank.job.evaluate_every
        if not every or self._rank.test_samples is None:
            return False
        return (step + 1) % every == 0 or step + 1 == self._rank.last_step

    def evaluate(self, *, own: bool = False) -> dict[str, float]:
        """Return the metrics of the run's model, or of this worker's own parameters."""
        rank = self._rank
        assert rank.test_samples is not None
        rank.outcome.test_samples = rank.test_samples.length
        start_s = rank.now()
        found, self._shared = self._shared, None
        if found is None:
            with rank.clock_stopped() if rank.is_reporter else contextlib.nullcontext():
                parameters = None if own else self.parameters()
                found = rank.model.replica.inspection.evaluate(rank.test_samples, parameters)
        assert found is not None
        self.leave_out(start_s)
        return found

    async def share(self, step: int) -> None:
        """Before the end of a step: do this worker's part of a shared evaluation, if one is due."""
        if self.sharing is None or not self.is_due(step):
            return
        start_s = self._rank.now()
        found = await self.sharing.evaluate()
        self._shared = found if self._rank.is_reporter else None
        self.seconds += self._rank.now() - start_s  # the spans are already recorded

    def announce(self, updates: int, metrics: Mapping[str, float]) -> None:
        """Announce the metric after `updates` updates, if a schedule waits for it. Other metrics are not read."""
        rank, every = self._rank, self._rank.job.evaluate_every
        if updates % every == 0 and rank.model.replica.updates.wait_for_metric:
            self._announced = next(iter(metrics.values()))
            rank.announce(updates // every, self._announced)

    def refuse_plateaus(self) -> None:
        """Refuse a schedule that depends on the metric. Ranks that do not wait would receive it at different
        updates."""
        if self._rank.model.replica.updates.wait_for_metric:
            remedy = "choose a schedule that goes by updates, or a strategy whose workers keep step"
            bound = "must not need a metric where workers update at their own pace"
            raise ConfigurationError("schedule", bound, "ReduceLROnPlateau", remedy)

    # Time

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Subtract the time spent in this context from the run's clock."""
        start_s = self._rank.now()
        try:
            yield
        finally:
            self.leave_out(start_s)

    def leave_out(self, start_s: float) -> None:
        """Subtract the time since `start_s` from the run's clock. The time was spent on measuring."""
        end_s = self._rank.now()
        self.seconds += end_s - start_s
        self._rank.span(Kind.EVALUATE, start_s, end_s)

    # The model that is evaluated

    def follow(self, steps: int) -> None:
        """Update the moving average, if there is one, with the parameters after `steps` steps."""
        if self._average is not None:
            self._average.follow(steps)

    @property
    def average(self) -> Tensor | None:
        """The moving average of the weights; None without one, or before its first update."""
        return None if self._average is None else self._average.values

    def parameters(self) -> Tensor | None:
        """Return the parameters to evaluate. None for the replica's own."""
        return self.mean() if self._average is None else self._average.values

    @property
    def observer(self) -> Observer:
        if self._observer is None:
            self._observer = self._rank.open_parameter_board()
        return self._observer

    def close_board(self) -> None:
        """Forget the board of workers that are not all present any more."""
        self._observer = None

    def publish(self, parameters: Tensor | None = None) -> None:
        """Publish this worker's parameters, or the tensor given instead."""
        self.observer.show(self._rank.model.parameters if parameters is None else parameters)

    def distance(self) -> float | None:
        """Return the distance of the workers from their mean. None if workers have published no parameters."""
        return None if self._observer is None else self._observer.distance()

    def mean(self) -> Tensor | None:
        """Return the mean of the workers' parameters. None if no observer is open: all workers share one model."""
        return self._observer.mean() if self._observer is not None else None

    @property
    def is_of_all(self) -> bool:
        """Whether the run's model is the mean of all workers' parameters."""
        return self._was_of_all or self._observer is not None

    async def look_again(self) -> None:
        """For a resumed run that had already ended: collect all workers' parameters once more for the reporter."""
        if self._was_of_all and self._rank.rank in self._rank.workers:
            self.publish()
            await self.observer.meet()
            await self.observer.part()

    # Saving and restoring

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = ({}, {}) if self._average is None else self._average.keep()
        own = {"evaluation_s": self.seconds, "of_all": self.is_of_all, "announced": self._announced}
        return tensors, {**facts, **own}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.seconds = facts["evaluation_s"]
        self._was_of_all = facts["of_all"]
        self._announced = facts.get("announced")
        if self._average is not None:
            self._average.restore(tensors, facts)
