"""Where workers show something to the run: memory that costs it no time and no bytes. It is measuring, not training."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from torch import Tensor

__all__ = ["RowBoard"]


class RowBoard(Protocol):
    """Each worker has a row, of zeros at first."""

    @property
    def tensor(self) -> Tensor:
        """All rows, as they are now."""
        ...

    def row(self, number: int) -> Tensor:
        """The row of this worker's own, to be written to."""
        ...

    def barrier(self) -> Awaitable[None]: ...

    def pause(self) -> Awaitable[None]:
        """A barrier whose wait is for the measurement's sake, not the run's."""
        ...
