"""One process, no communication: plain mini-batch SGD, the reference for all other strategies.

One worker runs and takes the whole batch, regardless of the size of the cluster.

When: As the reference for all other strategies, and for models that one worker trains quickly.
Cost: One gradient of the whole batch and one update per step. Nothing is sent.
Source: Robbins and Monro, "A Stochastic Approximation Method", 1951.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.context import Context, Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Single(Strategy):
    """One process, no communication: the reference for all other strategies."""

    replicates: ClassVar[tuple[str, ...]] = ("worker",)

    def roles(self, workers: int) -> Sequence[str]:
        return ("worker",)

    def syncs_batch_norm(self, workers: int) -> bool:
        return True

    async def worker(self, ctx: Context) -> None:
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            await ctx.model.apply()
