"""Loss functions and strategies that kill or stop ranks by a real signal."""

import dataclasses
import os
import signal

import torch
from strategies.server_cases import Wrapped
from tasks import samples
from torch import nn

from paceline.data.batches import GlobalBatches
from paceline.strategies import parse

__all__ = [
    "BATCH",
    "awaiting_loss",
    "deadly",
    "deadly_once",
    "dying",
    "numbered_samples",
    "struck",
    "struck_at_start",
]

SAMPLES, BATCH = 60, 20


def deadly_once(flag):
    """A loss that kills the first process that reaches its eighth batch."""
    calls = 0

    def loss(output, target):
        nonlocal calls
        calls += 1
        if calls == 8:
            try:
                flag.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.mse_loss(output, target)

    return loss


def numbered_samples():
    inputs, targets = samples(SAMPLES)
    return inputs, torch.cat([torch.arange(float(SAMPLES), dtype=torch.float64)[:, None], targets], dim=1)


def deadly(deaths, workers):
    """A loss that kills some ranks, each in its own step: {rank: step}.

    A rank is identified by its samples in that step.
    """
    batches = GlobalBatches(SAMPLES, BATCH, seed=0)
    fatal = {(step, int(batches.slice(step, rank, workers).indices[0])) for rank, step in deaths.items()}
    step = -1

    def loss(output, target):
        nonlocal step
        step += 1
        if any((step, int(number)) in fatal for number in target[:, 0]):
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.mse_loss(output, target[:, 1:])

    return loss


def awaiting_loss(spec, rank, step):
    """A strategy in which workers, two batches after a step, wait until a rank is lost.

    On a busy machine they could otherwise end the run before the rank reaches the step in which it dies.
    """
    strategy = parse(spec)

    async def worker(self, ctx):
        await type(strategy).worker(self, Wrapped(ctx, batches=_batches_until_lost(ctx, rank, step)))

    return _changed(strategy, worker=worker)


def dying(spec, rank, step):
    """As `awaiting_loss`. The worker dies when it takes its batch of the step, as by `pl.faults.Kill`."""
    strategy = parse(spec)

    async def worker(self, ctx):
        until_lost = _batches_until_lost(ctx, rank, step)

        async def batches(*given, **options):
            async for batch in until_lost(*given, **options):
                if (ctx.rank, batch.step) == (rank, step):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        await type(strategy).worker(self, Wrapped(ctx, batches=batches))

    return _changed(strategy, worker=worker)


def _batches_until_lost(ctx, rank, step):
    async def batches(*given, **options):
        async for batch in ctx.batches(*given, **options):
            while batch.step == step + 2 and not ctx.is_lost(rank):
                await ctx.sleep(0.001)
            yield batch

    return batches


def struck(spec, rank, step, number, flag):
    """A strategy that sends a signal to one of its ranks, a worker or a server, when the rank begins a step.

    Two batches after that step, workers wait until the file `flag` confirms the signal. Otherwise quick workers
    could end an asynchronous run before the rank reaches the step.
    """
    strategy = parse(spec)

    def wrapped(ctx):
        def strike(at):
            if ctx.rank == rank and at >= step and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), number)

        async def batches(own=None, **options):
            async for batch in ctx.batches(own, **options):
                if own is None:  # batches of the run, numbered by its steps
                    strike(batch.step)
                    while batch.step >= step + 2 and not flag.exists():
                        await ctx.sleep(0.001)
                yield batch

        async def rounds():
            async for at in ctx.rounds():
                strike(at)
                yield at

        return Wrapped(ctx, batches=batches, rounds=rounds)

    async def worker(self, ctx):
        await type(strategy).worker(self, wrapped(ctx))

    async def server(self, ctx):
        await type(strategy).server(self, wrapped(ctx))

    return _changed(strategy, worker=worker, server=server)


def struck_at_start(spec, rank, number):
    """A strategy that sends a signal to one of its workers before that worker is ready for the first step."""
    strategy = parse(spec)

    def prepare(self, ctx):
        if ctx.rank == rank:
            os.kill(os.getpid(), number)

    return _changed(strategy, prepare=prepare)


def _changed(strategy, **members):
    kind = type("Struck", (type(strategy),), members)
    return kind(**{f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)})
