"""The common part of all servers: a shard, its updates, and sending it to workers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.collectives import gradient_norm
from paceline.collectives.tensors import cut, spare_like, weigh
from paceline.context import ANY, Combine, Context, Message, Net
from paceline.errors import ConfigurationError, DeadlineError, MismatchError, PeerLost
from paceline.strategies.shared.push_pull.policy import (
    PARAMETERS,
    PUSH,
    RECEIPT,
    Policy,
)
from paceline.strategies.shared.push_pull.push import Push, in_order

if TYPE_CHECKING:
    from torch import Tensor


class Server:
    """A server with one shard of the parameters."""

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
