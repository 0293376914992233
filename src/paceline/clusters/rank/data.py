"""The training samples of a run, and which worker gets which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.context import Batch
from paceline.replica.batches import GlobalBatches
from paceline.replica.pieces.cutting import few_samples
from paceline.replica.samples import Samples, Source

__all__ = ["TrainingData"]


class TrainingData:
    """What every rank knows of the data. It has to be made only where it is asked for: it may be large."""

    def __init__(self, samples: Samples, batches: GlobalBatches, workers: int, turns: int = 1) -> None:
        """`turns`: so many steps, one after the other, are of the same global batch."""
        self.samples = samples
        self.source: Source = samples
        """Where batches come from: the samples themselves, or those that fetch them beforehand."""
        self.batches = batches
        self._workers = workers
        self._turns = turns

    @property
    def sample_count(self) -> int:
        return self.samples.count

    @property
    def samples_per_epoch(self) -> int:
        """Samples of one pass over the data, in every turn. 0: a stream, whose end is not known."""
        return self.batches.samples_per_epoch * self._turns

    @property
    def targets(self) -> np.ndarray:
        return self.samples.targets()

    @property
    def first_and_last(self) -> tuple[int, ...]:
        """The steps of the first and the last global batch of an epoch: the last may be smaller than all others."""
        end, turns = self.batches.steps_per_epoch * self._turns, self._turns
        return (*range(turns), *range(max(turns, end - turns), end))

    def batch_of(self, worker: int, step: int) -> Batch:
        turns = self._turns
        if turns == 1:
            return self.batches.slice(step, worker, self._workers)
        batch = self.batches.slice(step // turns, worker, self._workers)
        whole = batch.whole
        return Batch(step, batch.start, batch.count, batch.total, lambda step: whole(step // turns))

    def few(self) -> Any:
        """A small batch to try a model with: its shapes count."""
        return few_samples(self.samples, self.batch_of(0, 0))

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches. A world that can fetches those to come while the last one is computed."""
        return batches
