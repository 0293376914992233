"""The tasks of the tutorial: small enough for a laptop, and large enough to show each effect."""

from __future__ import annotations

import torch
from torch import nn

import paceline as pl

FEATURES, SAMPLES = 20, 4096


def line(rate: float = 0.1, batch_size: int = 64) -> pl.Task:
    """Linear regression: 20 weights, of which the data has the true values and a little noise."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    truth = torch.randn(FEATURES, 1, generator=generator)
    targets = inputs @ truth + 0.1 * torch.randn(SAMPLES, 1, generator=generator)
    return pl.Task(
        model=lambda: nn.Linear(FEATURES, 1, bias=False),
        data=(inputs[:-512], targets[:-512]),
        test=(inputs[-512:], targets[-512:]),
        metric="mse",
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate),
        batch_size=batch_size,
    )


def curve(rate: float = 0.1, batch_size: int = 256) -> pl.Task:
    """A network with one hidden layer of 64 units and 1,409 parameters."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    targets = torch.sin(inputs[:, :1] * 2) + inputs[:, 1:2] * inputs[:, 2:3]
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1)),
        data=(inputs[:-512], targets[:-512]),
        test=(inputs[-512:], targets[-512:]),
        metric="mse",
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate),
        batch_size=batch_size,
    )


def wide() -> pl.Task:
    """One layer of a million parameters: 4 MB of gradients. Its values do not matter."""
    return pl.Task(
        model=lambda: nn.Linear(1000, 1000),
        data=(torch.zeros(1, 1).expand(4096, 1000), torch.zeros(1, 1).expand(4096, 1000)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=1024,
    )


def deep() -> pl.Task:
    """Eight equal layers, for strategies that split the model."""
    inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(2))
    return pl.Task(
        model=lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))),
        data=(inputs, inputs.flip(1)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=0.001),
        batch_size=64,
    )


def fast() -> pl.Task:
    """Linear regression with a learning rate that one worker tolerates, and stale gradients do not."""
    return line(rate=0.2)
