"""Synchronous data parallelism: all workers average their gradients, then all apply the same update.

With `algorithm="shared"` there is one copy of the parameters, in memory that all ranks of the host share. Each rank
sums and updates one shard. `ring` and `shared` sum in the same order and give the same bits, except with gradient
clipping or several buckets.

When: The default, for workers of equal speed, models of any size. One slow worker slows down all others.
Cost, n bytes and p workers: 2 n (p - 1)/p sent by each (ring); n (p - 1)/p read by each (shared).
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; Goyal et al., "Accurate, Large
Minibatch SGD", 2017; the sharded update is Rajbhandari et al., "ZeRO", 2020, stage 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from paceline.collectives import (
    ALGORITHMS,
    all_reduce,
    choose_algorithm,
)
from paceline.collectives.coded import coded
from paceline.context import BUCKET_BYTES, Context, Net, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.shared.buffers import follow_buffers
from paceline.strategies.shared.codec import (
    algorithm_for,
    codec_field,
    gradient_codec,
    keeps_residuals,
    set_codec,
)
from paceline.strategies.shared.search_space import tried
from paceline.strategies.shared.sharding.updates import share_by_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce(Strategy):
    """All workers average their gradients, then all apply the same update."""

    in_step: ClassVar[bool] = True

    algorithm: str = field(
        default="auto",
        metadata={
            "help": f"how gradients are summed: {', '.join(ALGORITHMS)}",
            "tries": tried("ring", "tree", "halving-doubling", "hierarchical"),
        },
    )

    bucket_mb: float = field(
        default=BUCKET_BYTES / 2**20,
        metadata={
            "help": "size of a bucket in MiB; buckets are summed while the backward pass continues",
            "tries": tried(1, 5, 25, 100, 1000),
        },
    )

    codec: str = codec_field("gradients")

    def __post_init__(self) -> None:
        if not 0 < self.bucket_mb < float("inf"):
            raise ConfigurationError("bucket_mb", "must be above 0", self.bucket_mb, "25 is the default")
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        set_codec(self, self.algorithm)

    @property
    def replicates(self) -> Sequence[str]:
        return () if keeps_residuals(self.codec) else ("worker",)

    def syncs_batch_norm(self, workers: int) -> bool:
        return True

    async def worker(self, ctx: Context) -> None:
        algorithm = resolve_algorithm(ctx, self.algorithm, self.codec)
        net = coded(ctx, gradient_codec(ctx, self.codec, algorithm))
        if algorithm == "shared":
            await share_by_memory(ctx)
        else:
            await self._pass_messages(ctx, net, algorithm)

    async def _pass_messages(self, ctx: Context, net: Net, algorithm: str) -> None:
        bucket_bytes = int(self.bucket_mb * 2**20)
        async for batch in ctx.batches():
            await follow_buffers(ctx)
            async for bucket in ctx.model.gradients(batch, weight=batch.weight, bucket_bytes=bucket_bytes):
                await all_reduce(net, bucket, algorithm)
            await ctx.model.apply()


def resolve_algorithm(ctx: Context, algorithm: str, codec: str = "none") -> str:
    """Return the algorithm for this run: `algorithm`, or the chosen one if it is "auto"."""
    if algorithm != "auto":
        return algorithm
    gradient = ctx.model.gradient
    chosen = choose_algorithm(ctx.net, gradient.numel() * gradient.itemsize, for_run=True)
    return algorithm_for(codec, chosen)
