"""Rows of a table that are divided among the workers. Each worker has its own rows, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor


class PlacedRows:
    """Rows in the order of (partition, row). The partitions of a worker are on its host."""

    def __init__(self, counts: Sequence[int]) -> None:
        """`counts` are the rows of each partition."""
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._owners: np.ndarray | None = None
        self.workers = 0
        """Number of workers that have the rows."""
        self._columns: tuple[Tensor, ...] = ()
        self._own = np.empty(0, dtype=np.int64)

    def place(self, owners: Sequence[int], worker: int, workers: int, columns: tuple[Tensor, ...]) -> None:
        """Set the owner of each partition, and the rows of this worker's partitions, in their order."""
        self.workers = workers
        self._owners = np.asarray(owners, dtype=np.int64)
        self._columns = columns
        bounds = zip(self._starts[:-1], self._starts[1:], strict=True)
        own = [
            np.arange(*bound) for owner, bound in zip(self._owners, bounds, strict=True) if owner == worker
        ]
        self._own = np.concatenate([self._own, *own])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def owners_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the worker that has each of these rows."""
        assert self._owners is not None, "see place"
        owners: np.ndarray = self._owners[np.searchsorted(self._starts, numbers, side="right") - 1]
        return owners

    def gather(self, numbers: np.ndarray) -> list[Tensor]:
        """Return the rows with these numbers, column by column."""
        if not np.isin(numbers, self._own).all():
            raise not_here("rows of another worker")
        chosen = torch.from_numpy(np.searchsorted(self._own, numbers))
        return [column.index_select(0, chosen) for column in self._columns]

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(column[0] for column in self.gather(np.array([number])))


def not_here(value: str) -> ConfigurationError:
    remedy = "choose a data-parallel strategy, such as all-reduce or sync, or collect the rows into tensors"
    return ConfigurationError("data", "must be rows of the worker that computes them", value, remedy)
