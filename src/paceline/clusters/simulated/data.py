"""Training data of a simulation."""

from __future__ import annotations

from paceline.clusters.base.job import Job
from paceline.clusters.rank.data import TrainingData
from paceline.context import Batch
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples


class SharedData(TrainingData):
    """Training data, shared by all ranks. A server requests the same batch as a worker: it is created once."""

    def __init__(self, samples: Samples, batches: GlobalBatches, workers: int, turns: int = 1) -> None:
        super().__init__(samples, batches, workers, turns)
        self._last: dict[int, Batch] = {}

    def divide(self, workers: int) -> None:
        if workers != self._workers:
            super().divide(workers)
            self._last.clear()

    def batch_of(self, worker: int, step: int) -> Batch:
        batch = self._last.get(worker)
        if batch is None or batch.step != step:
            batch = self._last[worker] = self._slice(step, worker, self._workers)
        return batch


def shared_data(job: Job, samples: Samples | None, batches: GlobalBatches | None) -> SharedData | None:
    if job.task is None or samples is None or batches is None:
        return None
    return SharedData(samples, batches, job.workers, len(job.task.turns) or 1)
