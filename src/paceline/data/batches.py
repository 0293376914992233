"""The samples in the global batch of each step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Batch
from paceline.data.orders import Order, Sequential, Weighted, shuffled
from paceline.data.placed_rows import PlacedRows, not_here
from paceline.task.data import weights_of

if TYPE_CHECKING:
    from paceline.data.samples import Samples
    from paceline.task.task import Task


class GlobalBatches:
    """The global batches of a run. They depend on the seed and the batch size only, not on the number of workers."""

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        *,
        order: Order | None = None,
        drop_last: bool = False,
    ) -> None:
        """Batch `length` samples, shuffled unless an order is given.

        `drop_last` drops a smaller batch at an epoch's end.
        """
        self._order = shuffled(length, seed) if order is None else order
        length = self._order.length
        self.batch_size = min(batch_size, length)
        self.steps_per_epoch = length // self.batch_size if drop_last else math.ceil(length / self.batch_size)
        # The last batch of an epoch may be smaller.
        self._last_size = min(self.batch_size, length - (self.steps_per_epoch - 1) * self.batch_size)
        self.samples_per_epoch = (self.steps_per_epoch - 1) * self.batch_size + self._last_size

    @staticmethod
    def of(task: Task, samples: Samples, seed: int) -> GlobalBatches:
        """Return the global batches of a task's samples, in the order that the task specifies."""
        if samples.is_stream:
            return StreamBatches(task.batch_size)
        length = samples.length
        order: Order | None = None
        if task.sampler is not None:
            order = Weighted(*weights_of(task.sampler, length), seed)
        elif task.shuffle is False:
            order = Sequential(length)
        batches = GlobalBatches(length, task.batch_size, seed, order=order, drop_last=task.drop_last)
        return batches if samples.rows is None else PlacedBatches(batches, samples.rows)

    def slice(self, step: int, worker: int, workers: int) -> Batch:
        """Return the slice of step `step`'s batch for worker number `worker`.

        Slices are nearly equal and may be empty.
        """
        total = self.batch_size if (step + 1) % self.steps_per_epoch else self._last_size
        size, longer = divmod(total, workers)
        if worker < longer:
            return Batch(step, worker * (size + 1), size + 1, total, self.indices)
        return Batch(step, worker * size + longer, size, total, self.indices)

    def indices(self, step: int) -> np.ndarray:
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return self._order.numbers(epoch, start, start + self.batch_size)


class StreamBatches(GlobalBatches):
    """Batches of a stream. Sample i is in batch i // batch_size, because there is no gap between passes."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = self._last_size = batch_size
        self.steps_per_epoch = 1
        self.samples_per_epoch = 0

    def indices(self, step: int) -> np.ndarray:
        return np.arange(step * self.batch_size, (step + 1) * self.batch_size)


class PlacedBatches(GlobalBatches):
    """Batches of rows that are divided among the workers. The slice of a worker is the rows of the batch that it
    has."""

    def __init__(self, batches: GlobalBatches, rows: PlacedRows) -> None:
        self._batches = batches
        self._rows = rows
        self.batch_size = batches.batch_size
        self.steps_per_epoch = batches.steps_per_epoch
        self.samples_per_epoch = batches.samples_per_epoch

    def slice(self, step: int, worker: int, workers: int) -> Batch:
        owners = self._rows.owners_of(self._batches.indices(step))
        if workers != self._rows.workers:
            raise not_here(f"slices for {workers} workers")
        count, start = int((owners == worker).sum()), int((owners < worker).sum())
        return Batch(step, start, count, len(owners), self.indices)

    def indices(self, step: int) -> np.ndarray:
        """Return the global batch, with the rows of each worker next to each other."""
        numbers = self._batches.indices(step)
        ordered: np.ndarray = numbers[np.argsort(self._rows.owners_of(numbers), kind="stable")]
        return ordered
