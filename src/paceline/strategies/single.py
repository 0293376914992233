"""One process, no communication: plain mini-batch SGD, the yardstick of all other strategies.

Whatever the cluster's size, one worker runs and takes the whole batch.

When: As the yardstick of all others, and for models that one worker trains quickly.
Cost: A gradient of the whole batch and an update a step. Nothing is sent.
Source: Robbins and Monro, "A Stochastic Approximation Method", 1951.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.context import Context, Strategy

__all__ = ["Single"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Single(Strategy):
    """One process and no communication: the yardstick."""

    replicates: ClassVar[tuple[str, ...]] = ("worker",)

    def roles(self, workers: int) -> Sequence[str]:
        return ("worker",)

    async def worker(self, ctx: Context) -> None:
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            await ctx.model.apply()
