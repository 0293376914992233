"""A client: in the rounds for which it is sampled it trains the server's model on data of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Batch, Context
from paceline.replica.partitions import Partition
from paceline.strategies.counts import Counts
from paceline.strategies.federated.messages import ANSWER, MODEL, Adjust

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Client", "LocalWork"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalWork:
    """What a client does in a round."""

    epochs: int
    batch: int | None
    """Samples of a local step. None: the task's batch size; 0: all that the client has."""
    dropout: float
    """The chance that it drops out instead."""
    adjust: Adjust


class Client:
    """One client. It keeps nothing from round to round but its data, and how many steps it has taken."""

    def __init__(self, ctx: Context, work: LocalWork, partition: Partition) -> None:
        targets = ctx.model.data.targets if partition.needs_targets else ctx.model.data.sample_count
        self._ctx = ctx
        self._work = work
        self._own = partition.parts(targets, len(ctx.workers))[ctx.rank]
        size = ctx.model.data.batch_of(ctx.rank, 0).total if work.batch is None else work.batch
        self._batch_size = max(1, size or len(self._own))
        self._local_steps = Counts(ctx, "local_steps")

    async def run(self) -> None:
        async for step in self._ctx.rounds():
            order = await self._ctx.net.recv(self._ctx.servers[0], tag=MODEL)
            if order.tensor.numel():
                await self._take_part(step, order.tensor)
        self._local_steps.keep()

    async def _take_part(self, step: int, model: Tensor) -> None:
        ctx = self._ctx
        for buffer in ctx.model.buffers:
            await ctx.net.recv(ctx.servers[0], buffer, tag=MODEL)
        if self._drops_out():
            await ctx.net.send(ctx.servers[0], model[:0], tag=ANSWER)
            return
        ctx.model.parameters.copy_(model)
        ctx.model.reset_optimizer()
        ctx.model.advance_schedule(step)  # the rate is the round's, throughout the round
        loss = await self._train(model)
        samples = self._work.epochs * len(self._own)
        await ctx.net.send(ctx.servers[0], ctx.model.parameters - model, tag=ANSWER, header=(samples, loss))
        for buffer in ctx.model.buffers:
            await ctx.net.send(ctx.servers[0], buffer, tag=ANSWER)

    def _drops_out(self) -> bool:
        """By chance, or because it has nothing to learn from."""
        return self._ctx.rng.random() < self._work.dropout or not len(self._own)

    async def _train(self, model: Tensor) -> float:
        """The local epochs; their mean loss."""
        ctx, losses, counts = self._ctx, [], []
        for batch in ctx.model.data.ahead(self._batches()):
            losses.append(await ctx.model.compute(batch))
            self._work.adjust(ctx.model.gradient, ctx.model.parameters, model)
            await ctx.model.apply(advance=False)
            counts.append(batch.count)
        return float(np.average(losses, weights=counts))

    def _batches(self) -> Iterator[Batch]:
        for _ in range(self._work.epochs):
            order = self._ctx.rng.permutation(self._own)
            for start in range(0, len(order), self._batch_size):
                yield self._batch(order[start : start + self._batch_size])

    def _batch(self, numbers: np.ndarray) -> Batch:
        """A batch of its own, not a part of a larger one: its gradient is a plain mean."""
        # Each has a number of its own, for dropout layers are seeded by it, and models take turns by it.
        (number,) = self._local_steps.values
        self._local_steps.values[0] += 1
        return Batch(number, 0, len(numbers), len(numbers), lambda _step: numbers)
