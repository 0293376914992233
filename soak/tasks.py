"""The task of a case. Ranks import this module, which enables stack dumps."""

from __future__ import annotations

import faulthandler
import os
import signal
from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl
from soak.cases import Case
from soak.dump import STACKS

if "SOAK" in os.environ:  # the file stays open until the process ends
    _stacks = os.fdopen(os.memfd_create(STACKS, os.MFD_CLOEXEC), "w", closefd=False)
    faulthandler.register(signal.SIGUSR2, file=_stacks, all_threads=True)


def make_task(case: Case) -> pl.Task:
    dtype = torch.float64 if case.dtype == "float64" else torch.float32
    test = _numbers(7, 4, 3, dtype), _numbers(7, 2, 4, dtype)
    return pl.Task(
        model=partial(_model, case.hidden, case.depth, case.batch_norm, dtype),
        data=(_numbers(case.samples, 4, 1, dtype), _numbers(case.samples, 2, 2, dtype)),
        loss=nn.functional.mse_loss,
        optimizer=partial(_optimizer, case.optimizer, 0.05 / (1 + case.hidden / 20)),
        batch_size=case.batch_size,
        clip_norm=case.clip_norm,
        test=test if case.evaluates else None,
        metric=_negative_error if case.evaluates else None,
    )


def _numbers(rows: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(dtype)


def _model(hidden: int, depth: int, batch_norm: bool, dtype: torch.dtype) -> nn.Module:
    layers: list[nn.Module] = []
    for block in range(depth):
        layers += [nn.Tanh()] if block else []
        # BatchNorm cancels a bias before it: its gradient would be rounding noise, which Adam would amplify.
        layers.append(nn.Linear(4, hidden, bias=not batch_norm))
        layers += [nn.BatchNorm1d(hidden)] if batch_norm else []
        layers += [nn.Tanh(), nn.Linear(hidden, 2 if block + 1 == depth else 4)]
    return nn.Sequential(*layers).to(dtype)


def _optimizer(name: str, rate: float, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Create the optimizer. Rates are low, so that stale gradients do not diverge."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.001)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.5 if name == "momentum" else 0.0)


def _negative_error(outputs: Tensor, targets: Tensor) -> float:
    return -float(nn.functional.mse_loss(outputs, targets))
