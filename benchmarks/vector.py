"""A model of 4 MiB whose gradient costs next to nothing: what we and the peers push and pull alike.

The gradient is all ones, so what the parameters must be after any number of updates is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "ASYNC",
    "PARAMETERS",
    "RATE",
    "SYNC",
    "WORKERS",
    "Served",
    "Vector",
    "ignore_target",
    "make_data",
    "make_optimizer",
]

WORKERS = 3
PARAMETERS = 2**20  # of four bytes each
_LAYERS = 16
RATE = 0.01
ASYNC, SYNC = "async", "sync"


class Served(NamedTuple):
    """What a server did in one block: each worker pushed and pulled `rounds` times."""

    ends_s: Sequence[float]
    """When each update was done, on the server's monotonic clock."""
    parameters: Tensor

    def seconds(self, rounds: int, warm_up: int) -> float:
        """Mean seconds in which every worker pushes and pulls once, without the first rounds."""
        self._check()
        updates = len(self.ends_s) // rounds
        first = warm_up * updates - 1
        return (self.ends_s[-1] - self.ends_s[first]) / (rounds - warm_up)

    def _check(self) -> None:
        """Whoever loses a gradient, or applies one twice, is not measured."""
        expected = torch.full((PARAMETERS,), -RATE * len(self.ends_s))
        torch.testing.assert_close(self.parameters, expected, rtol=1e-3, atol=0.0)


class _Ones(torch.autograd.Function):
    """A loss of nothing, whose gradient is one everywhere."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ones: Tensor, *weights: Tensor) -> Tensor:
        ctx.ones, ctx.count = ones, len(weights)
        return inputs.sum()

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Each a tensor of its own over the same memory: autograd takes them as gradients, without a copy.
        return None, None, *(ctx.ones.detach() for _ in range(ctx.count))


class Vector(nn.Module):
    """A few layers, side by side. Their gradients are copies of one layer's, which stays in the processor's cache."""

    def __init__(self) -> None:
        super().__init__()
        length = PARAMETERS // _LAYERS
        self.layers = nn.ParameterList(torch.zeros(length) for _ in range(_LAYERS))
        self._ones = torch.ones(length)  # not a buffer, which would travel too

    def forward(self, inputs: Tensor) -> Tensor:
        loss: Tensor = _Ones.apply(inputs, self._ones, *self.layers)  # type: ignore[no-untyped-call]
        return loss


def ignore_target(loss: Tensor, _target: Tensor) -> Tensor:
    return loss


def make_data() -> tuple[Tensor, Tensor]:
    return torch.zeros(WORKERS, 1), torch.zeros(WORKERS)


def make_optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)
