"""The samples that a worker computes a gradient from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True)  # not frozen: simulations create millions, and frozen dataclasses are slow to create
class Batch:
    """One worker's slice of the global batch of one step."""

    step: int
    start: int
    """Offset of the slice in the global batch."""
    count: int
    """Number of samples in this slice. May be zero."""
    total: int
    """Number of samples in the global batch, over all workers."""
    whole: Callable[[int], np.ndarray]
    """Function that returns the sample indices of the global batch of a step."""
    update: int | None = None
    """Number of the update that uses this gradient; None if it equals `step`.

    If several models are trained in turn, this number selects the model.
    """
    part: int = 0
    """Number of this micro-batch in the slice. 0 if it is not divided."""

    @property
    def indices(self) -> np.ndarray:
        """Sample indices of this slice."""
        return self.whole(self.step)[self.start : self.start + self.count]

    @property
    def number(self) -> int:
        """Number of the update that uses this gradient."""
        return self.step if self.update is None else self.update

    @property
    def weight(self) -> float:
        """Fraction of the global batch in this slice."""
        return self.count / self.total
