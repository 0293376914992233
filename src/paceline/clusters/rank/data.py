"""Training samples of a run, and their assignment to workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.context import Batch
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples, Source
from paceline.errors import ConfigurationError
from paceline.model.cutting.layers import few_samples
from paceline.model.steps import micro_batches

_log = logging.getLogger("paceline")


class TrainingData:
    """Training data of a rank. Created only if it is used, because it may be large."""

    def __init__(self, samples: Samples, batches: GlobalBatches, workers: int, turns: int = 1) -> None:
        """Create the data. Each global batch is used for `turns` consecutive steps."""
        self.samples = samples
        self.source: Source = samples
        """Source of batches: the samples themselves, or a loader that prefetches them."""
        self.batches = batches
        self._workers = workers
        self._turns = turns
        self._slice = batches.slice if turns == 1 else partial(_slice_of_turn, batches, turns)

    def divide(self, workers: int) -> None:
        """Divide the global batches among another number of workers from now on."""
        self._workers = workers

    @property
    def samples_per_epoch(self) -> int:
        """Samples in one pass over the data, counted in every turn. 0 for a stream of unknown length."""
        return self.batches.samples_per_epoch * self._turns

    @property
    def first_and_last(self) -> tuple[int, ...]:
        """Steps of the first and the last global batch of an epoch. The last one may be smaller than the others."""
        end, turns = self.batches.steps_per_epoch * self._turns, self._turns
        return (*range(turns), *range(max(turns, end - turns), end))

    def batch_of(self, worker: int, step: int) -> Batch:
        return self._slice(step, worker, self._workers)

    def one_pass(self, parts: int) -> Any:
        """Return a micro-batch of the first batch, which is divided into `parts`. Only its shapes matter.

        Raise ConfigurationError if micro-batches differ in size.
        """
        batches = [self._slice(step, 0, 1) for step in self.first_and_last]
        micros = [micro for batch in batches for micro in micro_batches(batch, parts)]
        sizes = sorted({micro.count for micro in micros})
        if len(sizes) > 1:
            bound = f"must give {parts} micro-batches of one size, because the model works for one size only"
            remedy = "set drop_last=True, or a batch_size that micro-batches and rows divide"
            raise ConfigurationError("batch_size", bound, f"sizes {', '.join(map(str, sizes))}", remedy)
        return self.samples.content(micros[0], 0)

    def few(self) -> Any:
        """Return a small batch to trace a model with. Only its shapes matter."""
        return few_samples(self.samples, self.batch_of(0, 0))

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the same batches. A cluster may prefetch the next ones during a computation."""
        return batches


def _slice_of_turn(batches: GlobalBatches, turns: int, step: int, worker: int, workers: int) -> Batch:
    batch = batches.slice(step // turns, worker, workers)
    whole = batch.whole
    return Batch(step, batch.start, batch.count, batch.total, lambda step: whole(step // turns))


_LONE_SAMPLE = (
    "the batch of step %d has %d samples for %s (batch_size is %d): a single sample makes BatchNorm fail, unless each "
    "sample has several positions; choose a batch_size with at least %d samples in every batch, including the last of "
    "an epoch, or drop_last=True, or fewer workers"
)


def warn_of_lone_samples(
    module: nn.Module, data: TrainingData, *, workers: int, parts: int, steps: int
) -> None:
    """Warn if a model with BatchNorm will receive a single sample: BatchNorm may fail on it.

    Each worker splits its slice into `parts`.
    """
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    enough = 2 * workers * parts
    for step in data.first_and_last:
        total = data.batch_of(0, step).total
        if step < steps and 1 <= total < enough:
            shared = f"{workers} workers" + (f", {parts} parts each" if parts > 1 else "")
            _log.warning(_LONE_SAMPLE, step + 1, total, shared, data.batches.batch_size, enough)
            return
