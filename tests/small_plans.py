"""A small task and cluster for tests of plans."""

import dataclasses

import torch
from torch import nn

import paceline as pl

LINK = pl.Link("1Gbps", "50us")


def mlp(**words):
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        data=(inputs, (inputs.sum(1) > 0).long()),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        batch_size=16,
        **words,
    )


def aimed():
    task = mlp()
    return dataclasses.replace(task, test=task.data, metric="accuracy", target=0.9)


def cluster(workers=4, **words):
    return pl.Simulated(workers, compute=pl.times.Constant("10ms"), link=LINK, **words)
