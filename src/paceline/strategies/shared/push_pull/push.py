"""A gradient that a server has received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from paceline.context import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)  # not frozen: simulations create millions, and frozen is slower
class Push:
    """A received gradient."""

    worker: int
    step: int
    version: int
    loss: float
    gradient: Tensor
    batch: Batch
    """The batch that the gradient was computed from."""

    @property
    def key(self) -> tuple[int, int]:
        return self.worker, self.step


_KEY = attrgetter("worker", "step")
"""Faster form of `Push.key`."""


def in_order(pushes: Sequence[Push]) -> Sequence[Push]:
    """Sort by worker and step, so that a sum does not depend on the order of arrival."""
    return sorted(pushes, key=_KEY) if len(pushes) > 1 else pushes
