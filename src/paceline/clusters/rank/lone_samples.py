"""BatchNorm and slices of a single sample. BatchNorm may fail on them, so warn before the first step."""

from __future__ import annotations

import logging

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.clusters.rank.data import TrainingData

_log = logging.getLogger("paceline")


def warn_of_lone_samples(
    module: nn.Module, data: TrainingData, *, workers: int, parts: int, steps: int
) -> None:
    """Warn if a model with BatchNorm will receive a single sample. Each worker splits its slice into `parts`."""
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    enough = 2 * workers * parts
    for step in data.first_and_last:
        total = data.batch_of(0, step).total
        if step < steps and 1 <= total < enough:
            shared = f"{workers} workers" + (f", {parts} parts each" if parts > 1 else "")
            _log.warning(_WORDS, step + 1, total, shared, data.batches.batch_size, enough)
            return


_WORDS = (
    "the batch of step %d has %d samples for %s (batch_size is %d): a single sample makes BatchNorm fail, unless each "
    "sample has several positions; choose a batch_size with at least %d samples in every batch, including the last of "
    "an epoch, or drop_last=True, or fewer workers"
)
