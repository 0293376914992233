"""A model with one vector, which Paceline and the baselines push and pull.

Nothing is computed. The gradient is all ones, so the expected parameters are known after any number of updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

WORKERS = 3
RATE = 0.01
ASYNC, SYNC = "async", "sync"


class Served(NamedTuple):
    """Result of one block, in which each worker pushed and pulled `rounds` times."""

    ends_s: Sequence[float]
    """Time of each update, on the server's monotonic clock."""
    parameters: Tensor

    def seconds(self, rounds: int, warm_up: int) -> float:
        """Return the mean seconds of one push and pull by every worker, without the warm-up rounds."""
        self._check()
        updates = len(self.ends_s) // rounds
        first = warm_up * updates - 1
        return (self.ends_s[-1] - self.ends_s[first]) / (rounds - warm_up)

    def _check(self) -> None:
        """Check that no gradient was lost or applied twice."""
        expected = torch.full_like(self.parameters, -RATE * len(self.ends_s))
        torch.testing.assert_close(self.parameters, expected, rtol=1e-3, atol=0.0)


class Vector(nn.Module):
    """One flat parameter of `count` elements, four bytes each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))


def make_data() -> tuple[Tensor, Tensor]:
    return torch.zeros(WORKERS, 1), torch.zeros(WORKERS)


def make_optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)
