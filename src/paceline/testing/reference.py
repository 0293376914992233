"""What runs are held against: the strategy `single`, and a loop of plain PyTorch, against which `single` is held."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.replica.batches import GlobalBatches
from paceline.replica.calls import loss_of
from paceline.replica.samples import Samples
from paceline.testing.tasks import make_task
from paceline.testing.worlds import simulated

__all__ = ["STEPS", "single", "train_plainly"]

STEPS = 5


@cache
def single(case: str = "plain", optimizer: str = "sgd", dtype: torch.dtype = torch.float64) -> pl.Run:
    """The run that all others are held against."""
    return pl.train(make_task(case, optimizer, dtype), "single", simulated(1), steps=STEPS)


def train_plainly(
    task: pl.Task, steps: int = STEPS, seed: int = 0, workers: int = 1
) -> tuple[Tensor, dict[str, Tensor]]:
    """The parameters and buffers that a loop of plain PyTorch gives: the mean gradient of `workers` slices a step.

    Each slice passes the model in turn, from the same buffers; those that the first slice leaves are kept.
    """
    model, data = task.build_model(seed), Samples.of(task, seed)
    optimizer = task.build_optimizer(model)
    schedule = task.build_schedule(optimizer)
    batches = GlobalBatches.of(task, data, seed)
    for step in range(steps):
        for parameter in model.parameters():
            # A layer that takes no part has a gradient of zero, not none: weight decay acts on it all the same.
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
