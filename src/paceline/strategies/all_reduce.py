"""Synchronous data parallelism: every worker averages every gradient with all others, then all take the same step.

With `algorithm="shared"` the parameters exist once per host, in memory that all its ranks see; each rank sums and
updates one shard of them. Both ways sum in the same order, so they give the same bits (but for the norm that a task
clips by, and where gradients come in several buckets).

Cost, n bytes and p workers: 2 n (p - 1)/p sent by each (ring); n (p - 1)/p read by each (shared).
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; Goyal et al., "Accurate, Large
Minibatch SGD", 2017; the sharded update is Rajbhandari et al., "ZeRO", 2020, stage 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.collectives import ALGORITHMS, all_reduce, broadcast, choose_schedule, gradient_norm
from paceline.context import BUCKET_BYTES, Context
from paceline.errors import ConfigurationError, UnknownNameError

__all__ = ["AllReduce", "resolve_algorithm"]

_MANY_RANKS = 64  # from there on the ring's latency, 2 (p - 1) a, counts for more than equal bits on one host


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce:
    """Every worker averages every gradient, then all take the same step."""

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

    def roles(self, workers: int) -> Sequence[str]:
        return ("worker",) * workers

    async def worker(self, ctx: Context) -> None:
        algorithm = resolve_algorithm(ctx, self.algorithm)
        if algorithm == "shared":
            await self._share_memory(ctx)
        else:
            await self._pass_messages(ctx, algorithm)

    async def _pass_messages(self, ctx: Context, algorithm: str) -> None:
        async for batch in ctx.batches():
            await self._follow_buffers(ctx)
            async for bucket in ctx.gradients(batch, bucket_bytes=int(self.bucket_mb * 2**20)):
                await all_reduce(ctx, bucket, algorithm)
            await ctx.apply()

    async def _share_memory(self, ctx: Context) -> None:
        parameters = ctx.window("parameters", ctx.workers, rows=1, like=ctx.parameters)
        gradients = ctx.window("gradients", ctx.workers, rows=len(ctx.workers), like=ctx.gradient)
        if ctx.rank == ctx.workers[0]:
            parameters.tensor[0].copy_(ctx.parameters)
        ctx.place(parameters=parameters.tensor[0], gradient=gradients.tensor[ctx.rank])
        shard = ctx.shards(len(ctx.workers))[ctx.rank]
        # The ring's order: it ends at the shard's owner.
        order = [*ctx.workers[ctx.rank + 1 :], *ctx.workers[: ctx.rank + 1]]
        await parameters.barrier()
        async for batch in ctx.batches():
            await self._follow_buffers(ctx)
            await ctx.compute(batch)
            await gradients.barrier()
            await gradients.reduce(shard, order, into=ctx.gradient[shard])
            await ctx.apply(shard, norm=await gradient_norm(ctx, shard, ctx.workers))
            await parameters.barrier()

    async def _follow_buffers(self, ctx: Context) -> None:
        """BatchNorm's statistics and the like are the first worker's."""
        for tensor in ctx.buffers:
            await broadcast(ctx, tensor, root=ctx.workers[0], group=ctx.workers)


def resolve_algorithm(ctx: Context, algorithm: str) -> str:
    """What "auto" means for a run: shared memory on one host, and elsewhere the ring, whose sums are the same bits."""
    if algorithm != "auto":
        return algorithm
    if ctx.windows_are_fast:
        return "shared"
    if 1 < len(set(ctx.hosts)) < len(ctx.workers):
        return "hierarchical"
    if len(ctx.workers) <= _MANY_RANKS:
        return "ring"
    return choose_schedule(len(ctx.workers), ctx.gradient.numel() * ctx.gradient.itemsize)
