"""Properties of the data of a user's loop that a program may request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from paceline.context import Batch
from paceline.loop.batch import batch_of
from paceline.loop.facts import StepFacts

if TYPE_CHECKING:
    from paceline.loop.context import LoopContext


class LoopData:
    """Properties of the user's data: the sizes of batches that have been computed."""

    source: Any = None
    samples_per_epoch = 0
    batches = SimpleNamespace(batch_size=1)

    def __init__(self, context: LoopContext) -> None:
        self._context = context

    def batch_of(self, worker: int, step: int) -> Batch:
        """Return the batch of a gradient that this rank has received, or a batch of the first size."""
        table = self._context.model.table
        if table is not None:
            return batch_of(table.of(worker, step), worker)
        total = self._context.first_total
        return batch_of(StepFacts(step=step, count=total, total=total), worker)
