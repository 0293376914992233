"""References for tests: the strategy `single`, and a plain PyTorch loop to verify `single`."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.task.calls import loss_of
from paceline.testing.tasks import make_task
from paceline.testing.worlds import simulated

STEPS = 5


@cache
def single(case: str = "plain", optimizer: str = "sgd", dtype: torch.dtype = torch.float64) -> pl.Run:
    """Return the reference run."""
    return pl.train(make_task(case, optimizer, dtype), "single", simulated(1), steps=STEPS)


def train_plainly(
    task: pl.Task, steps: int = STEPS, seed: int = 0, workers: int = 1
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the parameters and buffers of a plain PyTorch loop that averages the gradients of `workers` slices a step.

    The slices are computed in turn, each with the same initial buffers. The buffers after the first slice are used.
    """
    model, data = task.build_model(seed), Samples.of(task, seed)
    optimizer = task.build_optimizer(model)
    schedule = task.build_schedule(optimizer)
    batches = GlobalBatches.of(task, data, seed)
    for step in range(steps):
        for parameter in model.parameters():
            # An unused layer has a zero gradient instead of None, so weight decay still applies to it.
            parameter.grad = torch.zeros_like(parameter)
        whole = batches.indices(step)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for worker in reversed(range(workers)):
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            part = batches.slice(step, worker, workers).indices
            if len(part):
                loss = loss_of(task, model, data.fetch(part)) * (len(part) / len(whole))
                loss.backward()  # type: ignore[no-untyped-call]
        if task.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    trained = torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])
    return trained, {name: buffer.clone() for name, buffer in model.named_buffers()}
