"""A worker of the parameter server: compute, push, pull; or drop the computation when newer parameters come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from paceline.context import Batch, Context, Handle, Message
from paceline.strategies.push_pull.policy import BUFFER, PARAMETERS, PUSH, Policy
from paceline.tensors import cut, overwrite

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Worker"]

Door: TypeAlias = "tuple[int, Tensor | None]"
"""A server, and where its shard is to go."""


class Worker:
    """One worker's part."""

    def __init__(self, ctx: Context, servers: Sequence[int], policy: Policy) -> None:
        self._ctx = ctx
        self._servers = servers
        self._policy = policy
        self._version = ctx.model.version
        self._adds_up = policy.takes_all(len(ctx.workers))
        self._shards = ctx.model.shards(len(servers))
        if policy.waits and not policy.cancels:
            # Who has pushed has nothing to do until the servers have read it.
            ctx.model.place(gradient="lent")
        # Made once: in a simulation, making a view takes longer than all the rest of a push.
        self._routes = list(zip(servers, cut(ctx.model.gradient, self._shards), strict=True))
        self._buffers = ctx.model.buffers if ctx.rank == ctx.workers[0] else ()

    async def run(self) -> None:
        """Until the server says stop; then say goodbye, so that the server knows that nothing more will come."""
        if self._policy.cancels:
            await self._compute_until_news()
        else:
            await self._compute_and_pull()
        for server in self._servers:
            await self._ctx.net.send(server, self._ctx.model.gradient[:0], tag=PUSH)

    async def _compute_and_pull(self) -> None:
        # Nothing computes when parameters come, so they may be overwritten where they are.
        ctx, keeps = self._ctx, self._policy.keeps
        places = self._doors(cut(ctx.model.parameters, self._shards))
        async for batch in ctx.batches(endless=True):
            # A server that adds gradients up as they come needs each times its share of the batch.
            loss = await ctx.model.compute(batch, weight=batch.weight if self._adds_up else 1.0)
            await self._push(batch, loss)
            goes_on = await (self._adopt(self._listen(places)) if keeps else self._borrow(places))
            if not goes_on:
                return

    async def _borrow(self, places: Sequence[Door]) -> bool:
        """Give up the memory of the parameters until the next ones have come."""
        model = self._ctx.model
        model.release()
        news = self._listen([(server, None) for server, _ in places])
        goes_on = await self._adopt(news)
        model.reclaim()
        for (_, place), handle in zip(places, news, strict=True):
            assert place is not None
            overwrite(place, (await handle).tensor)
        return goes_on

    async def _compute_until_news(self) -> None:
        # A computation may be under way when parameters come, so they land elsewhere first.
        landing = [self._ctx.model.parameters[shard].clone() for shard in self._shards]
        doors = self._doors(landing)
        news = self._listen(doors)
        async for batch in self._ctx.batches(endless=True):
            batch.update = self._version  # what is not for the next update is thrown away
            work = self._ctx.start(self._ctx.model.compute(batch))
            await self._ctx.first([news[0], work])
            if not news[0].done:
                await self._push(batch, await work)
                if self._policy.waits:
                    await news[0]
            if news[0].done:
                work.cancel()
                if not await self._adopt(news):
                    return
                for shard, landed in zip(self._shards, landing, strict=True):
                    self._ctx.model.parameters[shard].copy_(landed)
                news = self._listen(doors)

    async def _push(self, batch: Batch, loss: float) -> None:
        ctx, header = self._ctx, (batch.step, self._version, loss)
        under_way = [
            ctx.start(ctx.net.send(server, part, tag=PUSH, header=header)) for server, part in self._routes
        ]
        for buffer in self._buffers:
            await ctx.net.send(self._servers[0], buffer, tag=BUFFER)
        for handle in under_way:
            await handle

    def _doors(self, places: Sequence[Tensor]) -> list[Door]:
        return list(zip(self._servers, places, strict=True))

    def _listen(self, doors: Sequence[Door]) -> list[Handle[Message]]:
        ctx = self._ctx
        return [ctx.start(ctx.net.recv(server, place, tag=PARAMETERS)) for server, place in doors]

    async def _adopt(self, news: Sequence[Handle[Message]]) -> bool:
        """Wait for every server's shard; tell whether to go on."""
        goes_on = True
        for handle in news:
            self._version, goes_on = (await handle).header  # type: ignore[assignment]
        return bool(goes_on)
