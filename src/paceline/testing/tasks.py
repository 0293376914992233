"""Small tasks to test every strategy with. Each differs from the plain one in one aspect that may go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, IterableDataset

import paceline as pl

MakeOptimizer = Callable[[Any], Optimizer]

WORKERS = (1, 2, 3, 4)

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: Adam(params, lr=0.01, weight_decay=0.01),
}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def samples(count: int = 24, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return inputs of four numbers and targets of two."""
    return numbers(count, 4, seed=1, dtype=dtype), numbers(count, 2, seed=2, dtype=dtype)


def perceptron(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Return a model for `samples`."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """A map-style dataset of single samples."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.inputs, self.targets = samples(dtype=dtype)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class Rows(Dataset[dict[str, Tensor]]):
    """Samples that are dictionaries, with inputs of one to four numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.inputs, self.targets = samples(dtype=dtype)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"values": self.inputs[index, : 1 + index % 4], "label": self.targets[index]}


def pad(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Collate samples of different lengths, padded with zeros."""
    values = nn.utils.rnn.pad_sequence([row["values"] for row in rows], batch_first=True)
    return {"values": values, "label": torch.stack([row["label"] for row in rows])}


class WithLoss(nn.Module):
    """A model with dictionary inputs that computes its own loss, as Hugging Face models do."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = perceptron(dtype)

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body(nn.functional.pad(values, (0, 4 - values.shape[1])))
        return {"logits": logits} | (
            {"loss": nn.functional.mse_loss(logits, labels)} if labels is not None else {}
        )


class Tied(nn.Module):
    """Two layers that share a matrix, like the embedding and the output of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 4)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.decode(torch.tanh(self.encode(x))))


class Sum(nn.Module):
    """A model with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, left: Tensor, right: Tensor) -> Any:
        return self.left(left) + self.right(right)


def _with_frozen_layer(dtype: torch.dtype) -> nn.Module:
    model = perceptron(dtype)
    model[0].requires_grad_(False)
    return model


def _with_unused_layer(dtype: torch.dtype) -> nn.Module:
    model = perceptron(dtype)
    model[2].spare = nn.Linear(3, 3, dtype=dtype)
    return model


def _grouped(optimizer: MakeOptimizer) -> MakeOptimizer:
    """Return an optimizer with two groups: weights decay; biases do not, and have a higher rate. They alternate."""

    def make(params: Iterable[Tensor]) -> Optimizer:
        given = list(params)
        weights = {"params": [p for p in given if p.ndim > 1], "weight_decay": 0.1}
        biases = {"params": [p for p in given if p.ndim == 1], "weight_decay": 0.0, "lr": 0.2}
        return optimizer([weights, biases])

    return make


CASES: Mapping[str, Callable[[torch.dtype, MakeOptimizer], dict[str, Any]]] = {
    "plain": lambda dtype, optimizer: {},
    "batch-not-divisible": lambda dtype, optimizer: {"batch_size": 7},
    "fewer-samples-than-workers": lambda dtype, optimizer: {"data": samples(25, dtype)},
    "param-groups": lambda dtype, optimizer: {"optimizer": _grouped(optimizer)},
    "clipping": lambda dtype, optimizer: {"clip_norm": 0.05},
    "schedule": lambda dtype, optimizer: {"schedule": lambda made: LambdaLR(made, lambda step: 0.7**step)},
    "dataset": lambda dtype, optimizer: {"data": Pairs(dtype)},
    "dictionaries": lambda dtype, optimizer: {
        "model": lambda: WithLoss(dtype),
        "data": Rows(dtype),
        "collate": pad,
        "loss": None,
    },
    "weights": lambda dtype, optimizer: {"sampler": range(25), "data": samples(25, dtype), "drop_last": True},
    "frozen-layer": lambda dtype, optimizer: {"model": lambda: _with_frozen_layer(dtype)},
    "unused-layer": lambda dtype, optimizer: {"model": lambda: _with_unused_layer(dtype)},
    "tied-weights": lambda dtype, optimizer: {"model": lambda: Tied().to(dtype)},
    "two-inputs": lambda dtype, optimizer: {
        "model": lambda: Sum().to(dtype),
        "data": (*samples(dtype=dtype), numbers(24, 2, seed=3, dtype=dtype)),
    },
}
"""How each task differs from the plain one."""

ABOUT_UPDATES = ("fewer-samples-than-workers", "param-groups", "clipping", "schedule")
"""Cases that may work with one optimizer and fail with another."""


def make_task(
    case: str = "plain", optimizer: str = "sgd", dtype: torch.dtype = torch.float64, **changes: Any
) -> pl.Task:
    """Return the task of a case, with one of the optimizers."""
    given: dict[str, Any] = {
        "model": lambda: perceptron(dtype),
        "data": samples(dtype=dtype),
        "loss": nn.functional.mse_loss,
        "optimizer": OPTIMIZERS[optimizer],
        "batch_size": 8,
    }
    return pl.Task(**(given | CASES[case](dtype, OPTIMIZERS[optimizer]) | changes))


class Drawn(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream of 30 samples a pass, in a random order and with random noise in each pass."""

    def __init__(self) -> None:
        self.inputs, self.targets = samples(30)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.randperm(30).tolist():
            noise = 0.1 * torch.randn(4, dtype=torch.float64) + 0.1 * random.random() + 0.1 * self.epoch
            yield self.inputs[index] + noise + 0.1 * np.random.rand(), self.targets[index]


def stream_task(**changes: Any) -> pl.Task:
    """Return a task with a stream as data. Its passes end in the middle of a batch."""
    return make_task(optimizer="momentum", data=Drawn(), batch_size=11, **changes)


def _normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
    ).double()


def _normalised_over_positions() -> nn.Module:
    """Return a model in which BatchNorm has two values of each sample, so that one sample is a valid batch."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(6, 2)
    ).double()


def batch_norm_task(*, of_any_batch: bool = False) -> pl.Task:
    """Return a task with BatchNorm. It rejects batches of a single sample, unless `of_any_batch`.

    Steps have 11, 11 and 8 samples: slices of up to 4 workers are uneven, and none has a single sample.
    """
    model = _normalised_over_positions if of_any_batch else _normalised
    return make_task(optimizer="momentum", model=model, data=samples(30), batch_size=11)


def odd_task(dtype: torch.dtype, **changes: Any) -> pl.Task:
    """Return a task with dropout, and sizes that make the boundaries of shards and chunks uneven."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(13, 37), nn.ReLU(), nn.Dropout(0.3), nn.Linear(37, 11), nn.ReLU(), nn.Linear(11, 3)
        ).to(dtype)

    given: dict[str, Any] = {
        "model": model,
        "data": (numbers(50, 13, dtype=dtype), numbers(50, 3, seed=1, dtype=dtype)),
        "loss": nn.functional.mse_loss,
        "optimizer": lambda params: Adam(params, lr=0.01),
        "batch_size": 17,
    }
    return pl.Task(**(given | changes))


def in_turn(cases: Iterable[Sequence[Any]], *axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combine each case with one value of each axis, in turn. For processes, where all combinations take too long.

    If the lengths have no common divisor, all pairs of values occur after a while.
    """
    values = [list(axis) for axis in axes]
    return [(*case, *(axis[n % len(axis)] for axis in values)) for n, case in enumerate(cases)]
