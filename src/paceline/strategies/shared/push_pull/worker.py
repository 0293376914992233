"""A worker of the parameter server: compute, push, pull. New parameters may cancel a computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from paceline.collectives.tensors import cut, overwrite
from paceline.context import Batch, Context, Handle, Message, Net
from paceline.strategies.shared.push_pull.policy import BUFFER, PARAMETERS, PUSH, RECEIPT, Policy

if TYPE_CHECKING:
    from torch import Tensor

Door: TypeAlias = "tuple[int, Tensor | None]"
"""A server, and the memory that receives its shard."""


class Worker:
    """The program of one worker."""

    def __init__(self, ctx: Context, servers: Sequence[int], policy: Policy, pushes: Net, pulls: Net) -> None:
        """Create a worker. It pushes gradients on one net and pulls parameters on the other."""
        self._ctx = ctx
        self._servers = servers
        self._pushes, self._pulls = pushes, pulls
        self._policy = policy
        self._version = ctx.model.version
        self._adds_up = policy.takes_all(len(ctx.workers))
        self._shards = ctx.model.shards(len(servers))
        if policy.waits and not policy.cancels:
            # A worker that has pushed is idle until the servers have read its gradient.
            ctx.model.place(gradient="lent")
        # Created once: in a simulation, creating a view takes longer than the rest of a push.
        self._routes = list(zip(servers, cut(ctx.model.gradient, self._shards), strict=True))
        self._receipt: Handle[Message] | None = None
        self._buffers = ctx.model.buffers if ctx.rank == ctx.workers[0] else ()

    async def run(self) -> None:
        """Run until the server sends STOP, then send a farewell message, so that the server expects nothing more."""
        if self._policy.cancels:
            await self._compute_until_news()
        else:
            await self._compute_and_pull()
        if self._receipt is not None:
            await self._receipt
        for server in self._servers:
            await self._ctx.net.send(server, self._ctx.model.gradient[:0], tag=PUSH)

    async def _compute_and_pull(self) -> None:
        # This worker computes nothing while parameters arrive, so they can be overwritten in place.
        ctx, keeps = self._ctx, self._policy.keeps
        places = self._doors(cut(ctx.model.parameters, self._shards))
        async for batch in ctx.batches(endless=True):
            # A server that sums gradients as they arrive needs each one multiplied by its share of the batch.
            loss = await ctx.model.compute(batch, weight=batch.weight if self._adds_up else 1.0)
            await self._push(batch, loss)
            continues = await (self._adopt(self._listen(places)) if keeps else self._borrow(places))
            if not continues:
                return

    async def _borrow(self, places: Sequence[Door]) -> bool:
        """Free the memory of the parameters until the next ones have arrived."""
        model = self._ctx.model
        with model.released():
            news = self._listen([(server, None) for server, _ in places])
            continues = await self._adopt(news)
        for (_, place), handle in zip(places, news, strict=True):
            assert place is not None
            overwrite(place, (await handle).tensor)
        return continues

    async def _compute_until_news(self) -> None:
        # A computation may be running when parameters arrive, so they are received into other memory first.
        landing = [self._ctx.model.parameters[shard].clone() for shard in self._shards]
        doors = self._doors(landing)
        news = self._listen(doors)
        async for batch in self._ctx.batches(endless=True):
            batch.update = self._version  # a gradient that is not for the next update is discarded
            work = self._ctx.start(self._ctx.model.compute(batch))
            await self._ctx.first([news[0], work])
            if not news[0].done:
                await self._push_unless(news[0], batch, await work)
                if self._policy.waits:
                    await news[0]
            if news[0].done:
                work.cancel()
                if not await self._adopt(news):
                    return
                for shard, landed in zip(self._shards, landing, strict=True):
                    self._ctx.model.parameters[shard].copy_(landed)
                news = self._listen(doors)

    async def _push_unless(self, news: Handle[Message], batch: Batch, loss: float) -> None:
        """Push a gradient as soon as the first server has read the previous one, unless new parameters arrive
        first."""
        if self._receipt is not None:
            await self._ctx.first([news, self._receipt])
            if news.done:
                return
            await self._receipt
        await self._push(batch, loss)
        if self._policy.sends_receipts:
            self._receipt = self._ctx.start(self._ctx.net.recv(self._servers[0], tag=RECEIPT))

    async def _push(self, batch: Batch, loss: float) -> None:
        ctx, header = self._ctx, (batch.step, self._version, loss)
        under_way = [
            ctx.start(self._pushes.send(server, part, tag=PUSH, header=header))
            for server, part in self._routes
        ]
        for buffer in self._buffers:
            await ctx.net.send(self._servers[0], buffer, tag=BUFFER)
        for handle in under_way:
            await handle

    def _doors(self, places: Sequence[Tensor]) -> list[Door]:
        return list(zip(self._servers, places, strict=True))

    def _listen(self, doors: Sequence[Door]) -> list[Handle[Message]]:
        start, recv = self._ctx.start, self._pulls.recv
        return [start(recv(server, place, tag=PARAMETERS)) for server, place in doors]

    async def _adopt(self, news: Sequence[Handle[Message]]) -> bool:
        """Wait for every server's shard. Return whether to continue."""
        continues = True
        for handle in news:
            self._version, continues = (await handle).header  # type: ignore[assignment]
        return bool(continues)
