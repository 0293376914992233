"""Where a forward pass began, so that it can be done again: the random numbers, and the buffers that it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.chance import stand_at, standing

__all__ = ["Moment"]


class Moment:
    """Of one forward pass. Made before it; `end` comes after it."""

    def __init__(self, buffers: Callable[[], Sequence[Tensor]]) -> None:
        """`buffers` gives those that the pass may change: BatchNorm's statistics and the like."""
        self._buffers = buffers
        self._chance = standing()
        self._before = [None if each.is_meta else each.clone() for each in buffers()]

    def end(self) -> None:
        """Keep only the buffers that were changed: masks and tables are not."""
        pairs = zip(self._buffers(), self._before, strict=True)
        self._before = [
            None if before is None or torch.equal(now, before) else before for now, before in pairs
        ]

    def rewind(self) -> None:
        """Let everything be as it was then."""
        _fill(self._buffers(), self._before)
        stand_at(self._chance)

    @contextmanager
    def again(self) -> Iterator[None]:
        """As it was then; and, afterwards, as it is now: statistics are changed by the first pass only."""
        now = standing()
        pairs = zip(self._buffers(), self._before, strict=True)
        present = [None if before is None else each.clone() for each, before in pairs]
        self.rewind()
        try:
            yield
        finally:
            stand_at(now)
            _fill(self._buffers(), present)


def _fill(buffers: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        if value is not None:
            # By `data`, which autograd does not count as a change: BatchNorm's backward does not use its statistics.
            buffer.data.copy_(value)
