"""Losses of a task, and strategies, that kill ranks by a real SIGKILL."""

import dataclasses
import os
import signal

import torch
from strategies.server_cases import Wrapped
from tasks import samples
from torch import nn

from paceline.replica.batches import GlobalBatches
from paceline.strategies import parse

__all__ = ["BATCH", "deadly", "deadly_once", "dying", "numbered_samples"]

SAMPLES, BATCH = 60, 20


def deadly_once(flag):
    """A loss that kills the first process that comes to its eighth batch."""
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
    """A loss that kills each of some ranks in a step of its own: {rank: step}.

    A rank is known by the samples that it alone sees in that step.
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


def dying(spec, rank, step):
    """A strategy one of whose workers dies when it takes its batch of a step: as by `pl.faults.Kill(rank, step=step)`.

    The others take their next batch but one when they can know of it, so that there are steps without it.
    """
    strategy = parse(spec)

    async def worker(self, ctx):
        async def batches(**options):
            async for batch in ctx.batches(**options):
                if (ctx.rank, batch.step) == (rank, step):
                    os.kill(os.getpid(), signal.SIGKILL)
                while batch.step == step + 2 and not ctx.is_lost(rank):
                    await ctx.sleep(0.001)
                yield batch

        await type(strategy).worker(self, Wrapped(ctx, batches=batches))

    kind = type("Dying", (type(strategy),), {"worker": worker})
    return kind(**{f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)})
