"""Synchronous data parallelism: every worker averages every gradient with all others, then all take the same step.

With `algorithm="shared"` the parameters exist once per host, in memory that all its ranks see; each rank sums and
updates one shard of them. Both ways sum in the same order, so they give the same bits.

Cost, n bytes and p workers: 2 n (p - 1)/p sent by each (ring); n (p - 1)/p read by each (shared).
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; Goyal et al., "Accurate, Large
Minibatch SGD", 2017; the sharded update is Rajbhandari et al., "ZeRO", 2020, stage 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.collectives import all_reduce, broadcast, gradient_norm
from paceline.context import Context
from paceline.errors import UnknownNameError

__all__ = ["AllReduce"]

_ALGORITHMS = ("auto", "ring", "shared")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce:
    """Every worker averages every gradient, then all take the same step."""

    algorithm: str = field(
        default="auto",
        metadata={
            "help": f"how gradients are summed: {', '.join(_ALGORITHMS)} (auto: shared on one host, else ring)"
        },
    )

    def __post_init__(self) -> None:
        if self.algorithm not in _ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, _ALGORITHMS)

    def roles(self, workers: int) -> Sequence[str]:
        return ("worker",) * workers

    async def worker(self, ctx: Context) -> None:
        if self.algorithm == "shared" or (self.algorithm == "auto" and ctx.windows_are_fast):
            await self._share_memory(ctx)
        else:
            await self._pass_messages(ctx)

    async def _pass_messages(self, ctx: Context) -> None:
        async for batch in ctx.batches():
            await self._follow_buffers(ctx)
            async for bucket in ctx.gradients(batch):
                await all_reduce(ctx, bucket)
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
