"""Training data of a rank in a real process, with or without loaders."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.clusters.process.loaders import Loaders
from paceline.clusters.rank.data import TrainingData
from paceline.context import Batch
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.steps import micro_batches
from paceline.system.seeding import part_seed, rank_seed
from paceline.task.task import Task


class LoadedData(TrainingData):
    """Training data of a rank with loaders."""

    def __init__(
        self, samples: Samples, batches: GlobalBatches, workers: int, loaders: Loaders, turns: int = 1
    ) -> None:
        super().__init__(samples, batches, workers, turns)
        self.source = self.loaders = loaders

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return self.loaders.ahead(batches)


def open_data(
    task: Task, seed: int, rank: int, workers: int, deadline_s: float, *, uses_loaders: bool
) -> TrainingData:
    """Return the data of a rank. With `uses_loaders`, fork the loaders of the task, if its samples need any."""
    samples = Samples.of(task, seed)
    batches = GlobalBatches.of(task, samples, seed)
    turns = len(task.turns) or 1
    if not task.loaders or not uses_loaders or not samples.draws:
        return TrainingData(samples, batches, workers, turns)
    first = rank_seed(seed, rank)
    loaders = Loaders(
        samples,
        count=task.loaders,
        prefetch=task.prefetch or 1,
        rank=rank,
        requests_of=lambda batch: [
            (part, part_seed(first, batch.step, number))
            for number, part in enumerate(micro_batches(batch, task.accumulate))
        ],
        deadline_s=deadline_s,
    )
    return LoadedData(samples, batches, workers, loaders, turns)
