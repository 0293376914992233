"""Synchronous data parallelism: every worker averages every gradient with all others, then all take the same step.

With `algorithm="shared"` the parameters exist once per host, in memory that all its ranks see; each rank sums and
updates one shard of them. Both ways sum in the same order, so they give the same bits (but for the norm that a task
clips by, and where gradients come in several buckets).

When: The default: equal workers, any size of model. One slow worker slows everybody.
Cost, n bytes and p workers: 2 n (p - 1)/p sent by each (ring); n (p - 1)/p read by each (shared).
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; Goyal et al., "Accurate, Large
Minibatch SGD", 2017; the sharded update is Rajbhandari et al., "ZeRO", 2020, stage 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.collectives import (
    ALGORITHMS,
    all_reduce,
    choose_algorithm,
)
from paceline.context import BUCKET_BYTES, Context, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.buffers import follow_buffers
from paceline.strategies.sharding.updates import share_by_memory

__all__ = ["AllReduce", "resolve_algorithm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce(Strategy):
    """Every worker averages every gradient, then all take the same step."""

    replicates: ClassVar[tuple[str, ...]] = ("worker",)
    in_step: ClassVar[bool] = True

    algorithm: str = field(
        default="auto",
        metadata={"help": f"how gradients are summed: {', '.join(ALGORITHMS)}"},
    )

    bucket_mb: float = field(
        default=BUCKET_BYTES / 2**20,
        metadata={"help": "size of the buckets that are summed while backward goes on, in MiB"},
    )

    def __post_init__(self) -> None:
        if not 0 < self.bucket_mb < float("inf"):
            raise ConfigurationError("bucket_mb", "must be above 0", self.bucket_mb, "25 is the default")
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)

    async def worker(self, ctx: Context) -> None:
        algorithm = resolve_algorithm(ctx, self.algorithm)
        if algorithm == "shared":
            await share_by_memory(ctx)
        else:
            await self._pass_messages(ctx, algorithm)

    async def _pass_messages(self, ctx: Context, algorithm: str) -> None:
        bucket_bytes = int(self.bucket_mb * 2**20)
        async for batch in ctx.batches():
            await follow_buffers(ctx)
            async for bucket in ctx.model.gradients(batch, weight=batch.weight, bucket_bytes=bucket_bytes):
                await all_reduce(ctx.net, bucket, algorithm)
            await ctx.model.apply()


def resolve_algorithm(ctx: Context, algorithm: str) -> str:
    """What "auto" means for a run."""
    if algorithm != "auto":
        return algorithm
    gradient = ctx.model.gradient
    return choose_algorithm(ctx.net, gradient.numel() * gradient.itemsize, for_run=True)
