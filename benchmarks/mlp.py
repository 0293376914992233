"""The model, data and optimizer that Paceline and the baselines train."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = ["SAMPLES", "build_model", "cross_entropy", "make_data", "make_optimizer"]

SAMPLES = 64
"""Samples per worker and step."""
_STEPS_PER_EPOCH = 16


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def make_optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def make_data(workers: int) -> tuple[Tensor, Tensor]:
    """Return the data. Called in each worker of both sides. Also limits the worker to one thread."""
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(0)
    count = SAMPLES * workers * _STEPS_PER_EPOCH
    images = torch.randn(count, 784, generator=chance)
    return images, torch.randint(0, 10, (count,), generator=chance)
