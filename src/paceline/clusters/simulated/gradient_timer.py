"""Measured times of gradients and updates of the whole model on this machine, if no seconds are given.

Each is measured on first use. A split model never uses gradients of the whole model. Their measurement would take
longer than the measurement of all its passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from paceline.costs.measured import Measured, Reckoned, fit, median_s
from paceline.costs.prices import Price, delays_of
from paceline.costs.stragglers import Stragglers
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.replica import Replica
from paceline.system import interrupts
from paceline.system.seeding import rng_preserved


class MeasuredTimes:
    """Times measured by the first run that needs them, for all runs that share this object."""

    def __init__(self) -> None:
        self._measured: Measured | None = None

    def of(self, timer: GradientTimer) -> Measured:
        """Return the times. Measure them with this timer if none are known."""
        if self._measured is None:
            self._measured = Measured(timer.fixed_s, timer.per_sample_s, timer.update_s, timer.update_bytes)
        return self._measured


class GradientTimer:
    """Measured price: `paceline.costs.measured.Measured`, evaluated on first use."""

    def __init__(
        self, make: Callable[[], Replica], samples: Samples, batches: GlobalBatches, workers: int
    ) -> None:
        self._make = make
        self._samples = samples
        self._batches = batches
        self._workers = workers

    def of_rank(self, rank: int, stragglers: Stragglers, rng: np.random.Generator) -> Price:
        return Reckoned(self, stragglers.factor(rank), delays_of(rank, stragglers, rng))

    @property
    def fixed_s(self) -> float:
        return self._line[0]

    @property
    def per_sample_s(self) -> float:
        return self._line[1]

    @property
    def update_s(self) -> float:
        return self._update[0]

    @property
    def update_bytes(self) -> int:
        return self._update[1]

    @cached_property
    def _line(self) -> tuple[float, float]:
        """Fixed seconds and seconds per sample, fitted to one worker's slice and a batch of another size."""
        with rng_preserved():
            replica = self._make()
            # A slice of one sample has no statistics of its own, but needs none if workers share them.
            workers = 1 if replica.task.sync_batch_norm else self._workers
            own = self._batches.slice(0, 0, workers)
            other = self._batches.slice(0, 0, 1 if workers > 1 else 2)
            seconds = []
            for batch in (own, other):
                interrupts.safe_point()
                seconds.append(median_s(lambda batch=batch: replica.compute(batch, self._samples)))  # type: ignore[misc]
        return fit((own.count, other.count), (seconds[0], seconds[1]))

    @cached_property
    def _update(self) -> tuple[float, int]:
        """Seconds and bytes of an update. The gradient is zero: the values do not affect the time."""
        with rng_preserved():
            replica = self._make()
            return median_s(replica.apply), replica.parameters.nbytes
