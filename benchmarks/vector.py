"""A model of 4 MiB: what we and the baselines push and pull alike.

Nothing is computed. The gradient is all ones, so what the parameters must be after any number of updates is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
    "make_data",
    "make_optimizer",
]

WORKERS = 3
PARAMETERS = 2**20  # of four bytes each
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


class Vector(nn.Module):
    """One flat parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(PARAMETERS))


def make_data() -> tuple[Tensor, Tensor]:
    return torch.zeros(WORKERS, 1), torch.zeros(WORKERS)


def make_optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)
