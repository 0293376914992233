"""The training samples of a run, and which worker gets which."""

from __future__ import annotations

import numpy as np

from paceline.context import Batch
from paceline.replica.batches import GlobalBatches
from paceline.replica.samples import Samples

__all__ = ["TrainingData"]


class TrainingData:
    """What every rank knows of the data. It has to be made only where it is asked for: it may be large."""

    def __init__(self, samples: Samples, batches: GlobalBatches, workers: int) -> None:
        self.samples = samples
        self.batches = batches
        self._workers = workers

    @property
    def sample_count(self) -> int:
        return self.samples.length

    @property
    def samples_per_epoch(self) -> int:
        """Samples of one pass over the data: those of all its global batches."""
        last = self.batches.steps_per_epoch - 1
        return last * self.batches.batch_size + self.batches.slice(last, 0, 1).total

    @property
    def targets(self) -> np.ndarray:
        return self.samples.targets()

    def batch_of(self, worker: int, step: int) -> Batch:
        return self.batches.slice(step, worker, self._workers)
