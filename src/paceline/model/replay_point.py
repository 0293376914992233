"""State before a forward pass, so that the pass can be repeated: random numbers, and the buffers that it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.system.seeding import restore_rng, rng_state


class ReplayPoint:
    """State before one forward pass. Create it before the pass, and call `end` after it."""

    def __init__(self, buffers: Callable[[], Sequence[Tensor]]) -> None:
        """`buffers` returns the buffers that the pass may change, such as BatchNorm statistics."""
        self._buffers = buffers
        self._chance = rng_state()
        self._before = [None if each.is_meta else each.clone() for each in buffers()]

    def end(self) -> None:
        """Drop the copies of buffers that the pass did not change, such as masks and tables."""
        pairs = zip(self._buffers(), self._before, strict=True)
        self._before = [
            None if before is None or torch.equal(now, before) else before for now, before in pairs
        ]

    def rewind(self) -> None:
        """Restore the state before the pass."""
        _fill(self._buffers(), self._before)
        restore_rng(self._chance)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restore the state before the pass, and on exit the present state: only the first pass changes statistics."""
        now = rng_state()
        pairs = zip(self._buffers(), self._before, strict=True)
        present = [None if before is None else each.clone() for each, before in pairs]
        self.rewind()
        try:
            yield
        finally:
            restore_rng(now)
            _fill(self._buffers(), present)


def _fill(buffers: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        if value is not None:
            # Autograd does not count a write to `data` as a change. BatchNorm's backward does not use its statistics.
            buffer.data.copy_(value)
