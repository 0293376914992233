"""What gradients and updates of the whole model take on this machine: measured, where nobody gives their seconds.

Each is measured when it is first asked for. A model in pieces never asks for gradients of the whole, and would wait
for them longer than for all its own passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from paceline.chance import kept
from paceline.costs.measured import Reckoned, fit, median_s
from paceline.costs.prices import Price, delays_of
from paceline.costs.stragglers import Stragglers
from paceline.replica.batches import GlobalBatches
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples

__all__ = ["GradientTimer"]


class GradientTimer:
    """A price by measurement: `paceline.costs.measured.Measured`, found out when it is needed."""

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
        """Through a gradient of one worker's slice, and of a batch of another size."""
        own = self._batches.slice(0, 0, self._workers)
        other = self._batches.slice(0, 0, 1 if self._workers > 1 else 2)
        with kept():
            replica = self._make()
            own_s, other_s = (
                median_s(lambda batch=batch: replica.compute(batch, self._samples))  # type: ignore[misc]
                for batch in (own, other)
            )
        return fit((own.count, other.count), (own_s, other_s))

    @cached_property
    def _update(self) -> tuple[float, int]:
        """With a gradient of zeros: what the numbers are makes no difference."""
        with kept():
            replica = self._make()
            return median_s(replica.apply), replica.parameters.nbytes
