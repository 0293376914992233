"""The samples that a worker computes a gradient of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Batch"]


@dataclass(slots=True)  # not frozen, which would cost more than all else: simulations make millions
class Batch:
    """One worker's slice of the global batch of one step."""

    step: int
    start: int
    """Where the slice begins in the global batch."""
    count: int
    """Samples of this slice. May be zero."""
    total: int
    """Samples of the global batch, over all workers."""
    whole: Callable[[int], np.ndarray]
    """Gives the sample numbers of the global batch of a step."""
    update: int | None = None
    """The number of the update that its gradient is for, where that is not its step: it sets whose turn it is, where
    several models are trained in turn."""

    @property
    def indices(self) -> np.ndarray:
        """The sample numbers of this slice."""
        return self.whole(self.step)[self.start : self.start + self.count]

    @property
    def number(self) -> int:
        """Of the update that its gradient is for."""
        return self.step if self.update is None else self.update

    @property
    def weight(self) -> float:
        """This slice's share of the global batch."""
        return self.count / self.total
