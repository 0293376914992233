"""A worker of the parameter server: compute, push, pull; or drop the computation when newer parameters come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import Batch, Context, Handle, Message
from paceline.strategies.push_pull.policy import BUFFER, PARAMETERS, PUSH, STOP, Policy, stamp

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Worker"]


class Worker:
    """One worker's side of the bargain."""

    def __init__(self, ctx: Context, policy: Policy) -> None:
        self._ctx = ctx
        self._policy = policy
        self._version = 0
        self._shards = ctx.shards(len(ctx.servers))

    async def run(self) -> None:
        """Until the server says stop; then say goodbye, so that the server knows that nothing more will come."""
        if self._policy.cancels:
            await self._compute_until_news()
        else:
            await self._compute_and_pull()
        for server in self._ctx.servers:
            await self._ctx.send(server, self._ctx.gradient[:0], tag=PUSH, version=STOP)

    async def _compute_and_pull(self) -> None:
        async for batch in self._ctx.batches(endless=True):
            await self._push(batch, await self._ctx.compute(batch))
            # Nothing computes now, so the parameters may be overwritten where they are.
            if not await self._adopt(self._listen([self._ctx.parameters[shard] for shard in self._shards])):
                return

    async def _compute_until_news(self) -> None:
        # A computation may be under way when parameters come, so they land elsewhere first.
        landing = [self._ctx.parameters[shard].clone() for shard in self._shards]
        news = self._listen(landing)
        async for batch in self._ctx.batches(endless=True):
            work = self._ctx.start(self._ctx.compute(batch))
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
                    self._ctx.parameters[shard].copy_(landed)
                news = self._listen(landing)

    async def _push(self, batch: Batch, gradient: Tensor) -> None:
        under_way = [
            self._ctx.start(
                self._ctx.send(
                    server,
                    gradient[shard],
                    tag=PUSH,
                    version=stamp(batch.step, self._version),
                    note=self._ctx.loss,
                )
            )
            for server, shard in zip(self._ctx.servers, self._shards, strict=True)
        ]
        if self._ctx.rank == self._ctx.workers[0]:
            for buffer in self._ctx.buffers:
                await self._ctx.send(self._ctx.servers[0], buffer, tag=BUFFER)
        for handle in under_way:
            await handle

    def _listen(self, places: Sequence[Tensor]) -> list[Handle[Message]]:
        return [
            self._ctx.start(self._ctx.recv(server, place, tag=PARAMETERS))
            for server, place in zip(self._ctx.servers, places, strict=True)
        ]

    async def _adopt(self, news: Sequence[Handle[Message]]) -> bool:
        """Wait for every server's shard; tell whether to go on."""
        messages = [await handle for handle in news]
        self._version = messages[0].version
        return self._version != STOP
