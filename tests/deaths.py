"""Losses of a task that kill ranks by a real SIGKILL."""

import os
import signal

import torch
from tasks import samples
from torch import nn

from paceline.replica.batches import GlobalBatches

__all__ = ["BATCH", "deadly", "deadly_once", "numbered_samples"]

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
