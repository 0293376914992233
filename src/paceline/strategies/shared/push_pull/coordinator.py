"""The first server: it decides which gradients make up an update, and tells the other servers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.context import Context, Net
from paceline.errors import PeerLost
from paceline.strategies.shared.counts import Counts
from paceline.strategies.shared.push_pull.order import Order
from paceline.strategies.shared.push_pull.policy import BUFFER, ORDER, SHARD, Policy
from paceline.strategies.shared.push_pull.push import Push, in_order
from paceline.strategies.shared.push_pull.server import Server


class Coordinator(Server):
    """The first server: collects gradients and decides on updates."""

    def __init__(
        self,
        ctx: Context,
        servers: Sequence[int],
        policy: Policy,
        pushes: Net,
        pulls: Net,
        *,
        staleness_aware: bool = False,
    ) -> None:
        super().__init__(ctx, servers, policy, pushes, pulls, staleness_aware=staleness_aware)
        self._samples = Counts(ctx, "samples")
        self._alive = set(ctx.workers)
        self._gradients = Counts(ctx, "gradients", len(ctx.workers)).values
        self._held: set[int] = set()  # workers held back because they are too far ahead of the slowest
        # BatchNorm statistics and the like come from the first worker, which sends them with its gradient.
        self._buffers, self._first_worker = ctx.model.buffers, ctx.workers[0]

    async def run(self) -> None:
        ctx = self.ctx
        async for step in ctx.rounds():
            pushes = await self._collect()
            self._report(pushes)
            ends = step + 1 >= ctx.log.steps
            recipients = sorted(self._alive) if ends else self._next_recipients(pushes)
            version = self.version + 1
            inspects = ctx.log.inspects(step)
            if len(self.servers) > 1:
                await self._tell_followers(pushes, recipients, version, ends=ends, fetch=inspects)
            await self.update(pushes)
            self.hand_out(recipients, version, ends=ends)
            if inspects:
                await self._fetch_shards()
        await self.wait_for_farewells(sorted(self._alive))

    def note_lost(self, rank: int) -> None:
        self.ctx.log.note_lost(rank)

    async def _collect(self) -> list[Push]:
        """Receive the gradients of the next update."""
        policy = self.policy
        pushes: list[Push] = []
        while len(pushes) < policy.k:
            try:
                push = self.read(await self.next_message(len(pushes)))
                if push is not None and push.worker == self._first_worker:
                    await self._take_buffers()
            except PeerLost as loss:
                await self._continue_without(loss)
                continue
            if push is None:
                continue
            self._gradients[push.worker] += 1
            if policy.cancels and push.version < self.version:
                self.discard(
                    push
                )  # the worker pushed this gradient before it received the update that cancels it
                continue
            pushes.append(push)
            if not policy.waits and not policy.cancels and len(pushes) < policy.k:
                await self._hand_out_everywhere([push.worker])
        return pushes

    async def _take_buffers(self) -> None:
        for buffer in self._buffers:
            await self.net.recv(self._first_worker, buffer, tag=BUFFER)

    async def _continue_without(self, loss: PeerLost) -> None:
        needed = self.policy.k if self.policy.waits else 1
        if loss.rank not in self._alive or len(self._alive) - 1 < needed:
            raise loss
        self._alive.remove(loss.rank)
        self._held.discard(loss.rank)
        self.note_lost(loss.rank)
        if self._held:  # the lost worker may have been the slowest
            await self._hand_out_everywhere(self._next_recipients([]))

    def _next_recipients(self, pushes: Sequence[Push]) -> list[int]:
        if self.policy.cancels:
            return sorted(self._alive)
        ready = pushes if self.policy.waits else pushes[-1:]
        finished = [push.worker for push in ready if push.worker in self._alive]
        if self.policy.slack is None:
            return sorted(finished)
        done = self._gradients
        slowest = min(done[worker] for worker in self._alive)
        candidates = self._held.union(finished)
        free = {worker for worker in candidates if done[worker] - slowest <= self.policy.slack}
        self._held = candidates - free
        return sorted(free)

    async def _hand_out_everywhere(self, workers: Sequence[int]) -> None:
        """Send the current parameters from every server, without an update."""
        if len(self.servers) > 1:
            await self._tell_followers([], workers, self.version)
        self.hand_out(workers, self.version)

    def _report(self, pushes: Sequence[Push]) -> None:
        log, loss, samples = self.ctx.log, 0.0, 0
        for push in in_order(pushes):
            log.note_staleness(self.version - push.version)
            count = push.batch.count
            if count:  # the loss of an empty slice is NaN
                loss += push.loss * count
                samples += count
        self._samples.values[0] += samples
        log.report(loss=loss / samples if samples else math.nan, samples=self._samples.values[0])

    async def _tell_followers(
        self,
        pushes: Sequence[Push],
        recipients: Sequence[int],
        version: int,
        *,
        ends: bool = False,
        fetch: bool = False,
    ) -> None:
        order = Order([push.key for push in pushes], list(recipients), version, ends, fetch).pack()
        for server in self.servers[1:]:
            await self.net.send(server, order, tag=ORDER)

    async def _fetch_shards(self) -> None:
        shards = self.model.shards(len(self.servers))
        for server, shard in zip(self.servers[1:], shards[1:], strict=True):
            await self.net.recv(server, self.model.parameters[shard], tag=SHARD)
