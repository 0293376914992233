"""Orders without a flush: the batches of a run follow each other through the pipeline, and no rank waits between them.

Each rank follows 1F1B through the micro-batches of all batches. It updates its stage after the last backward pass of
each batch, so gradients are stale: between the first forward pass of a batch and its update, other updates happen. A
micro-batch uses one version of the weights for its forward and its backward pass, so ranks store several versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuousOrder:
    """Staleness and versions of such an order, for rank `rank` of `stages` ranks."""

    staleness: Callable[[int, int], int]
    """Updates of a rank between the version that a gradient is computed with and its own update."""
    versions: Callable[[int, int], int]
    """Versions of the weights that a rank stores, including the present one."""
    whole_batches: bool
    """Whether a micro-batch is a whole batch."""

    def steps_ahead(self, stages: int) -> int:
        """Return the number of whole batches that the first rank sends before its first backward pass has ended."""
        return stages - 1 if self.whole_batches else 0


def ahead(rank: int, stages: int) -> int:
    """Return the number of micro-batches that a rank sends forward before its first backward pass, beside its own."""
    return stages - 1 - rank
