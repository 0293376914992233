"""A client: in the rounds in which it is sampled, it trains the server's model on its own data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Batch, Context, Net
from paceline.data.partitions import Partition
from paceline.strategies.shared.counts import Counts
from paceline.strategies.shared.federated.messages import ANSWER, MODEL, Adjust

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalWork:
    """Settings of a client's work in a round."""

    epochs: int
    batch: int | None
    """Samples in a local step: None for the task's batch size, 0 for all samples of the client."""
    dropout: float
    """Probability that the client drops out of a round."""
    adjust: Adjust


class Client:
    """One client. Between rounds it stores only its data and the count of its local steps."""

    def __init__(self, ctx: Context, work: LocalWork, partition: Partition, answers: Net) -> None:
        """Create a client. It sends its differences on the net `answers`."""
        self._ctx = ctx
        self._answers = answers
        self._work = work
        self._own = partition.parts(ctx.targets, len(ctx.workers))[ctx.rank]
        size = ctx.batch_of(ctx.rank, 0).total if work.batch is None else work.batch
        self._batch_size = max(1, size or len(self._own))
        self._local_steps = Counts(ctx, "local_steps")

    async def run(self) -> None:
        async for step in self._ctx.rounds():
            order = await self._ctx.net.recv(self._ctx.servers[0], tag=MODEL)
            if order.tensor.numel():
                await self._take_part(step, order.tensor)

    async def _take_part(self, step: int, model: Tensor) -> None:
        ctx = self._ctx
        for buffer in ctx.model.buffers:
            await ctx.net.recv(ctx.servers[0], buffer, tag=MODEL)
        if drops_out(ctx.rng, self._own, self._work.dropout):
            await ctx.net.send(ctx.servers[0], model[:0], tag=ANSWER)
            return
        ctx.model.parameters.copy_(model)
        ctx.model.advance_schedule(step, restart=True)  # the learning rate is constant within a round
        loss = await self._train(model)
        samples = self._work.epochs * len(self._own)
        difference = ctx.model.gradient.copy_(ctx.model.parameters).sub_(model)
        await self._answers.send(ctx.servers[0], difference, tag=ANSWER, header=(samples, loss))
        for buffer in ctx.model.buffers:
            await ctx.net.send(ctx.servers[0], buffer, tag=ANSWER)

    async def _train(self, model: Tensor) -> float:
        """Run the local epochs. Return their mean loss."""
        ctx, losses, counts = self._ctx, [], []
        async for batch in ctx.batches(self._batches()):
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
        """Return a complete batch, not a slice of a larger one, so that its gradient is a plain mean."""
        # Each batch has its own number: it seeds dropout, and selects the model if several are trained in turn.
        (number,) = self._local_steps.values
        self._local_steps.values[0] += 1
        return Batch(number, 0, len(numbers), len(numbers), lambda _step: numbers)


def drops_out(rng: np.random.Generator, own: np.ndarray, dropout: float) -> bool:
    """Return whether a client drops out of a round: at random, or because it has no data."""
    return rng.random() < dropout or not len(own)
