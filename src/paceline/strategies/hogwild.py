"""Hogwild: workers of one host update the same parameters, without locks.

The parameters lie in memory that all workers share. Each worker takes its own mini-batches (its slices of the global
batches), computes a gradient at the parameters as they are, others' half-done updates included, and applies its
optimizer to them. Two updates at one moment may lose parts of each other, coordinate by coordinate; where gradients are
sparse they seldom meet, and what is lost is noise.

- A step is one update by any worker, with the mean gradient of its slice: choose the learning rate for a mini-batch of
  batch size / workers. The run ends after exactly as many updates as it was asked for.
- Each worker has an optimizer of its own: momentum and the like come from its own gradients alone. The learning-rate
  schedule goes by the updates of all, as the worker last saw them.
- Staleness counts the updates that others began between a worker's read (the start of its computation) and its write.
- The first worker evaluates while the others go on, so that its time counts. BatchNorm's statistics are its own.

When: Sparse gradients on one machine, where updates seldom touch the same parameters.
Cost, n bytes: no messages; each update reads and writes n bytes of shared memory.
Source: Recht, Ré, Wright, Niu, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.context import Batch, Context, Strategy
from paceline.errors import ConfigurationError

__all__ = ["Hogwild"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hogwild(Strategy):
    """Workers of one host update shared parameters without locks."""

    async def worker(self, ctx: Context) -> None:
        _check(ctx)
        shared = ctx.net.window("parameters", rows=1, like=ctx.model.parameters)
        if ctx.rank == ctx.workers[0]:
            shared.tensor[0].copy_(ctx.model.parameters)
        ctx.model.place(parameters=shared.tensor[0])
        tally = _Tally(ctx)
        await shared.barrier()
        async for batch in ctx.batches(endless=True):
            if not batch.count:
                continue
            read = tally.version()
            loss = await ctx.model.compute(batch)
            version = tally.claim()
            if version > ctx.log.steps:
                break
            await _update(ctx, tally, batch, loss, read, version)
        await shared.barrier()
        version = tally.settle() + ctx.rank + 1
        if version <= ctx.log.steps:
            # What was read may count claims that were then given up.
            await _update(ctx, tally, batch, loss, min(read, version - 1), version)
        await shared.barrier()


async def _update(ctx: Context, tally: _Tally, batch: Batch, loss: float, read: int, version: int) -> None:
    """Apply a gradient that was computed at version `read`; it makes the parameters' version number `version`."""
    ctx.log.note_staleness(version - 1 - read)
    await ctx.model.apply()
    ctx.model.advance_schedule(tally.unseen())
    ctx.log.record(version, loss=loss, samples=batch.count)


class _Tally:
    """How many updates each worker has claimed. A worker writes its own count alone, so no count is lost.

    An update is claimed before it is made: by adding one to the own count, and then looking at the sum. Of those who
    find the sum within the run's length, the last to look has seen the claims of all others: they are never too many.
    Two who claim the last update at once may each see the other and both give it up: `settle` makes up for these.
    """

    def __init__(self, ctx: Context) -> None:
        import torch

        like = torch.zeros(1, dtype=torch.int64)
        # A row each, for rows lie in cache lines of their own.
        self._counts = ctx.net.window("claims", rows=len(ctx.workers), like=like).tensor
        self._own = self._counts[ctx.rank].zero_()
        self._begun = self._seen = ctx.model.version

    def version(self) -> int:
        return self._begun + int(self._counts.sum())

    def claim(self) -> int:
        """The version that an update of this worker makes, if that is within the run's length."""
        # Torch counts references by atomic operations, which keep this store before the loads that follow.
        self._own += 1
        self._seen += 1
        return self.version()

    def unseen(self) -> int:
        """Updates of others since this was last asked."""
        before, self._seen = self._seen, self.version()
        return self._seen - before

    def settle(self) -> int:
        """Updates made, when all workers have stopped: each has claimed one that it has in hand and did not make."""
        return self.version() - len(self._counts)


def _check(ctx: Context) -> None:
    hosts = len({ctx.net.hosts[rank] for rank in ctx.workers})
    if hosts > 1:
        remedy = "use one host, or a strategy that passes messages, such as async"
        raise ConfigurationError("hosts", "must be 1: hogwild needs workers of one host", hosts, remedy)
    samples = ctx.model.data.batch_of(ctx.workers[0], 0).total
    if samples < len(ctx.workers):
        bound = f"must be at least {len(ctx.workers)}: hogwild gives each worker a slice of its own"
        raise ConfigurationError("batch_size", bound, samples, "use fewer workers")
