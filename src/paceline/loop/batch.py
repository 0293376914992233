"""Batches of a user's loop. The sizes of a batch are known when its gradient is known."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.context import Batch
from paceline.loop.facts import StepFacts

if TYPE_CHECKING:
    from paceline.loop.context import LoopContext


def batch_of(facts: StepFacts, worker: int) -> LoopBatch:
    """Return the batch of a gradient that has been computed."""
    return LoopBatch(facts.step, worker, lambda: facts)


class LoopBatch(Batch):
    """One worker's part of a step. Its sizes are requested when they are first read.

    So the program runs up to the point where it needs the gradient: parameters that a strategy sends at the beginning
    of a step have then arrived before the user's code reads them.
    """

    __slots__ = ("_facts", "_request", "worker")

    def __init__(self, step: int, worker: int, request: Callable[[], StepFacts]) -> None:
        # The fields of the base class are not set, because two of them are properties here.
        self.step = step
        self.start = 0
        self.whole = _no_indices
        self.update = None
        self.worker = worker
        self._request = request
        self._facts: StepFacts | None = None

    @property
    def facts(self) -> StepFacts:
        if self._facts is None:
            self._facts = self._request()
        return self._facts

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.facts.count

    @property
    def total(self) -> int:  # type: ignore[override]
        return self.facts.total


def _no_indices(_step: int) -> np.ndarray:
    return np.empty(0, dtype=np.int64)


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
