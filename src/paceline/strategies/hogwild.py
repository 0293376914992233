"""Hogwild: workers of one host update the same parameters, without locks.

The parameters are in memory that all workers share. Each worker takes its slices of the global batches as
mini-batches. It computes a gradient at the current parameters, which may include partial updates of other workers.
Then its optimizer updates them. Two concurrent updates may overwrite each other in single coordinates. With sparse
gradients this is rare, and the lost updates act as noise.

- A step is one update by any worker, with the mean gradient of its slice: choose the learning rate for a mini-batch of
  batch size / workers. The run ends after exactly the requested number of updates.
- Each worker has its own optimizer, with momentum from its own gradients only. The learning-rate schedule uses
  the number of updates by all workers, as known at the worker's last update.
- Staleness is the number of updates that other workers began between a worker's read (the start of its computation)
  and its write.
- The first worker evaluates while the others continue, so the evaluation counts in the run's time. The run's BatchNorm
  statistics come from the first worker.

When: Sparse gradients on one machine, if updates rarely change the same parameters.
Cost, n bytes: no messages; each update reads and writes n bytes of shared memory.
Source: Recht, Ré, Wright, Niu, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.context import Batch, Context, Strategy
from paceline.errors import ConfigurationError
from paceline.strategies.shared.search_space import Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class Hogwild(Strategy):
    """Workers of one host update shared parameters without locks."""

    def batches_per_update(self, workers: int) -> float:
        return 1 / workers

    @staticmethod
    def unsuited(scope: Scope) -> str:
        return "" if scope.shares_memory else "it needs shared memory"

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
            # `read` may count claims that other workers abandoned.
            await _update(ctx, tally, batch, loss, min(read, version - 1), version)
        await shared.barrier()


async def _update(ctx: Context, tally: _Tally, batch: Batch, loss: float, read: int, version: int) -> None:
    """Apply a gradient that was computed at version `read`. The result is version `version` of the parameters."""
    ctx.log.note_staleness(version - 1 - read)
    await ctx.model.apply()
    ctx.model.advance_schedule(tally.unseen())
    ctx.log.record(version, loss=loss, samples=batch.count)


class _Tally:
    """The number of updates claimed by each worker. A worker writes only its own count, so no count is lost.

    A worker claims an update before making it: it increments its own count, then reads the sum. Of the workers
    that may update, the last to read the sum has seen the claims of all the others. Its sum is within the run's
    length, so the run never has too many updates. Two workers that claim the last update at the same time may both
    see the other's claim and both abandon the update. After `settle` the workers make up for such updates.
    """

    def __init__(self, ctx: Context) -> None:
        import torch

        like = torch.zeros(1, dtype=torch.int64)
        # One row per worker: rows are in separate cache lines.
        self._counts = ctx.net.window("claims", rows=len(ctx.workers), like=like).tensor
        self._own = self._counts[ctx.rank].zero_()
        self._begun = self._seen = ctx.model.version

    def version(self) -> int:
        return self._begun + int(self._counts.sum())

    def claim(self) -> int:
        """Claim an update. Return its version, which is valid if it is within the run's length."""
        # Torch's reference counting uses atomic operations, so this store completes before the following loads.
        self._own += 1
        self._seen += 1
        return self.version()

    def unseen(self) -> int:
        """Return the number of updates by other workers since the last call."""
        before, self._seen = self._seen, self.version()
        return self._seen - before

    def settle(self) -> int:
        """Return the number of updates made.

        All workers must have stopped. Each has one unused claim, which is not counted.
        """
        return self.version() - len(self._counts)


def _check(ctx: Context) -> None:
    hosts = len({ctx.net.hosts[rank] for rank in ctx.workers})
    if hosts > 1:
        remedy = "use one host, or a strategy that passes messages, such as async"
        raise ConfigurationError("hosts", "must be 1: hogwild needs workers of one host", hosts, remedy)
    samples = ctx.batch_of(ctx.workers[0], 0).total
    if samples < len(ctx.workers):
        bound = f"must be at least {len(ctx.workers)}: hogwild gives each worker its own slice"
        raise ConfigurationError("batch_size", bound, samples, "use fewer workers")
