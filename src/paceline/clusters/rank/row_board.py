"""Memory in which workers publish values for measurements. It costs the run no time and no bytes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from torch import Tensor


class RowBoard(Protocol):
    """A row for each worker, initially zeros."""

    @property
    def tensor(self) -> Tensor:
        """All rows, as they are now."""
        ...

    def row(self, number: int) -> Tensor:
        """Return this worker's own row, to write to."""
        ...

    def barrier(self) -> Awaitable[None]: ...

    def pause(self) -> Awaitable[None]:
        """Wait at a barrier. The wait counts as measuring, not as part of the run."""
        ...
