"""Gradient descent by map and reduce: a server broadcasts the parameters, and each worker maps its slice of the
batch to a gradient. The server reduces the gradients to their sum and updates the parameters.

When: Few workers or small models; to measure the cost of a central server.
Cost, n bytes and p workers: the server's port carries p n out and p n in. Communication takes 2 p n b + 2 a per step.
Source: Chu, Kim, Lin, Yu, Bradski, Ng, Olukotun, "Map-Reduce for Machine Learning on Multicore", NIPS 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.collectives import broadcast, reduce
from paceline.collectives.coded import coded
from paceline.context import Context, StateAt, Strategy
from paceline.strategies.shared.codec import gradient_codec


@dataclass(frozen=True, kw_only=True, slots=True)
class MapReduce(Strategy):
    """A server broadcasts parameters, and reduces the gradients of the workers."""

    replicates: ClassVar[tuple[str, ...]] = ("worker", "server")

    def roles(self, workers: int) -> Sequence[str]:
        return (*("worker",) * workers, "server")

    @property
    def state_at(self) -> StateAt:
        return "server"

    def syncs_batch_norm(self, workers: int) -> bool:
        return True

    async def server(self, ctx: Context) -> None:
        net = coded(ctx, gradient_codec(ctx, "none"))
        async for _ in ctx.rounds():
            await self._broadcast(ctx)
            for buffer in ctx.model.buffers:  # BatchNorm statistics and the like come from the first worker
                await ctx.net.recv(ctx.workers[0], buffer)
            ctx.model.gradient.zero_()
            await reduce(net, ctx.model.gradient, root=ctx.rank, algorithm="flat")
            await ctx.model.apply()

    async def worker(self, ctx: Context) -> None:
        net = coded(ctx, gradient_codec(ctx, "none"))
        async for batch in ctx.batches():
            await self._broadcast(ctx)
            await ctx.model.compute(batch, weight=batch.weight)
            for buffer in ctx.model.buffers if ctx.rank == ctx.workers[0] else ():
                await ctx.net.send(ctx.servers[0], buffer)
            await reduce(net, ctx.model.gradient, root=ctx.servers[0], algorithm="flat")

    async def _broadcast(self, ctx: Context) -> None:
        for tensor in (ctx.model.parameters, *ctx.model.buffers):
            await broadcast(ctx.net, tensor, root=ctx.servers[0], algorithm="flat")
