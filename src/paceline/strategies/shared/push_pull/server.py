"""The servers: the first decides which gradients make up an update, the others follow, each on its own shard."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.collectives import gradient_norm
from paceline.collectives.tensors import cut, spare_like, weigh
from paceline.context import ANY, Combine, Context, Message, Net
from paceline.errors import ConfigurationError, DeadlineError, MismatchError, PeerLost
from paceline.strategies.shared.counts import Counts
from paceline.strategies.shared.push_pull.order import Order
from paceline.strategies.shared.push_pull.policy import (
    BUFFER,
    ORDER,
    PARAMETERS,
    PUSH,
    RECEIPT,
    SHARD,
    Policy,
)
from paceline.strategies.shared.push_pull.push import Push, in_order

if TYPE_CHECKING:
    from torch import Tensor


class Server:
    """The common part of all servers: a shard, its updates, and sending it to workers."""

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
        """Create a server. Workers push gradients on one net and pull parameters on the other."""
        if len(servers) > ctx.model.parameters.numel():
            bound = f"must be at most {ctx.model.parameters.numel()}, the number of parameters"
            raise ConfigurationError("servers", bound, len(servers))
        self.ctx = ctx
        self.net, self.model = ctx.net, ctx.model
        self.pushes, self.pulls = pushes, pulls
        self.servers = servers
        self.policy = policy
        number, shards = servers.index(ctx.rank), ctx.model.shards(len(servers))
        self.shard = shards[number]
        ctx.model.place(parameters="lent")
        # Created once: in a simulation, creating a view takes most of the time of an update.
        self._parameters = cut(ctx.model.parameters, shards)[number]
        self._gradient = cut(ctx.model.gradient, shards)[number]
        self._length = self.shard.stop - self.shard.start
        self.version = ctx.model.version
        self.batch_of = ctx.batch_of
        # An update takes one gradient of every worker: each is added to the sum as it is received, in order of ranks.
        self._adds_up = policy.takes_all(len(ctx.workers))
        # Each gradient is one update, so it can be received straight into the gradient buffer.
        self._sums_nothing = policy.k == 1 and ctx.rank == servers[0]
        # The gradient buffer then already contains the mean gradient of the update.
        self._weighs = not self._adds_up and (staleness_aware or not self._sums_nothing)
        self._spare: list[Tensor] = []  # memory of gradients that have been summed, for reuse
        self._farewells: set[int] = set()
        self._staleness_aware = staleness_aware
        self._cancels = policy.cancels
        self._sends_receipts = policy.sends_receipts and ctx.rank == servers[0]

    def read(self, message: Message) -> Push | None:
        """Return the gradient that a worker has pushed; None if the message is a farewell."""
        source, _, gradient, header = message
        if not header:
            self._farewells.add(source)
            return None
        if self._sends_receipts:
            self.ctx.start(self.net.send(source, gradient[:0], tag=RECEIPT))
        step, version, loss = header
        fits = gradient is self._gradient or gradient.shape == (self._length,)
        if not fits or version > self.version:
            sent = f"a gradient of shape {list(gradient.shape)} at version {version}"
            expected = f"one of shape [{self._length}] at a version up to {self.version}"
            raise MismatchError(source, sent, self.ctx.rank, expected)
        batch = self.batch_of(source, step)  # type: ignore[arg-type]
        if self._cancels:
            batch.update = version  # type: ignore[assignment]
        return Push(source, step, version, loss, gradient, batch)  # type: ignore[arg-type]

    def next_message(self, count: int = 0) -> Awaitable[Message]:
        """Receive the next push. `count` gradients of the same update have already arrived."""
        if not self._adds_up:
            return self.pushes.recv(ANY, self._landing(), tag=PUSH)
        combine: Combine = "sum" if count else "copy"
        return self.pushes.recv(self.ctx.workers[count], self._gradient, combine=combine, tag=PUSH)

    def discard(self, push: Push) -> None:
        """Reuse the memory of a gradient. New memory costs more than a copy: the system clears it page by page."""
        if push.gradient is not self._gradient:
            self._spare.append(push.gradient)

    async def update(self, pushes: Sequence[Push]) -> None:
        """Take one optimizer step with the mean gradient over samples, summed in the order of ranks."""
        if self._weighs:
            weigh(self._gradient, self._weighted(in_order(pushes)))
            for push in pushes:
                self.discard(push)
        await self.model.apply(self.shard, norm=self._norm, of=[push.batch for push in pushes])
        self.version += 1

    def _norm(self) -> Awaitable[float]:
        return gradient_norm(self.net.split(self.servers), self._gradient)

    def hand_out(self, workers: Sequence[int], version: int, *, ends: bool = False) -> None:
        """Start sending the shard to workers, without waiting.

        The next update first copies parameters that are not sent yet.
        """
        start, send, shard, header = self.ctx.start, self.net.send, self._parameters, (version, not ends)
        for worker in workers:
            start(send(worker, shard, tag=PARAMETERS, header=header))

    async def wait_for_farewells(self, workers: Sequence[int]) -> None:
        """Receive farewells from all workers, and drop gradients that they pushed before they received STOP.

        All updates are done. The run ends without a worker that sends no farewell in time, so that the model is not
        lost.
        """
        while not self._farewells.issuperset(workers):
            try:
                self.read(await self.pushes.recv(ANY, tag=PUSH))
            except PeerLost as loss:
                self._leave_behind([loss.rank])
            except DeadlineError:
                self._leave_behind(sorted(set(workers) - self._farewells))

    def _leave_behind(self, workers: Sequence[int]) -> None:
        self._farewells.update(workers)
        for worker in workers:
            self.note_lost(worker)

    def note_lost(self, rank: int) -> None:
        """Record a lost worker. Only the first server does."""

    def _landing(self) -> Tensor:
        """Return the memory that receives the next gradient."""
        if self._sums_nothing:
            return self._gradient
        return self._spare.pop() if self._spare else spare_like(self._gradient)

    def _weighted(self, pushes: Sequence[Push]) -> Iterator[tuple[Tensor, float]]:
        """Yield each gradient with its weight. This is a generator, so simulations without values skip the work."""
        samples = max(1, sum(push.batch.count for push in pushes))
        for push in pushes:
            yield push.gradient, self._damping(push) * push.batch.count / samples

    def _damping(self, push: Push) -> float:
        return 1.0 / max(1, self.version - push.version) if self._staleness_aware else 1.0


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
            recipients = sorted(self._alive) if ends else self._who_goes_on(pushes)
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
                await self._go_on_without(loss)
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

    async def _go_on_without(self, loss: PeerLost) -> None:
        needed = self.policy.k if self.policy.waits else 1
        if loss.rank not in self._alive or len(self._alive) - 1 < needed:
            raise loss
        self._alive.remove(loss.rank)
        self._held.discard(loss.rank)
        self.note_lost(loss.rank)
        if self._held:  # the lost worker may have been the slowest
            await self._hand_out_everywhere(self._who_goes_on([]))

    def _who_goes_on(self, pushes: Sequence[Push]) -> list[int]:
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


class Follower(Server):
    """Any other server: applies the decisions of the first server to its own shard."""

    async def run(self) -> None:
        kept: dict[tuple[int, int], Push] = {}
        while True:
            message = await self.net.recv(self.servers[0], tag=ORDER)
            order = Order.unpack(message.tensor)
            if order.keys:
                await self.update([await self._find(n, key, kept) for n, key in enumerate(order.keys)])
            if self.policy.cancels:
                for key in [key for key, push in kept.items() if push.version < self.version]:
                    self.discard(kept.pop(key))
            self.hand_out(order.recipients, order.version, ends=order.ends)
            if order.fetch:
                await self.net.send(self.servers[0], self.model.parameters[self.shard], tag=SHARD)
            if order.ends:
                await self.wait_for_farewells(order.recipients)
                return

    async def _find(self, count: int, key: tuple[int, int], kept: dict[tuple[int, int], Push]) -> Push:
        while key not in kept:
            try:
                push = self.read(await self.next_message(count))
            except PeerLost as loss:
                if loss.rank == key[0]:
                    raise  # the others have this gradient in their shards already
                continue
            if push is not None:
                kept[push.key] = push
        return kept.pop(key)
