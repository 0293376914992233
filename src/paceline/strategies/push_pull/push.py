"""A gradient that a server has received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from paceline.context import Batch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Push", "in_order"]


@dataclass(slots=True, eq=False)  # not frozen, which would cost more than all else: simulations make millions
class Push:
    """A gradient that has come."""

    worker: int
    step: int
    version: int
    loss: float
    gradient: Tensor
    batch: Batch
    """What it is the gradient of."""

    @property
    def key(self) -> tuple[int, int]:
        return self.worker, self.step


_KEY = attrgetter("worker", "step")
"""`Push.key`, quicker."""


def in_order(pushes: Sequence[Push]) -> Sequence[Push]:
    """By worker and step, so that a sum is the same whoever came first."""
    return sorted(pushes, key=_KEY) if len(pushes) > 1 else pushes
