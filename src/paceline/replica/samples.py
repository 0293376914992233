"""A task's samples, and how they are fetched."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from paceline.replica.calls import target_of
from paceline.schedules.steps import chunk_bounds

__all__ = ["Samples"]


class Samples:
    """A task's data: fetches the samples of given numbers as one batch. `calls` says what a model makes of it."""

    def __init__(self, data: tuple[Tensor, ...] | Dataset[Any]) -> None:
        if isinstance(data, TensorDataset):
            data = data.tensors
        self._tensors = data if isinstance(data, tuple) else None
        self._dataset = None if isinstance(data, tuple) else data
        self.length = len(data[0]) if isinstance(data, tuple) else len(cast(Any, data))
        self.draws = self._tensors is None
        """Whether fetching runs code of the user's, which may draw random numbers."""
        self._targets: np.ndarray | None = None

    def fetch(self, indices: np.ndarray) -> Any:
        if self._tensors is not None:
            chosen = torch.from_numpy(indices)
            return [tensor.index_select(0, chosen) for tensor in self._tensors]
        dataset = cast(Any, self._dataset)
        return default_collate([dataset[int(i)] for i in indices])

    def targets(self) -> np.ndarray:
        """The target of every sample: one array, however often it is asked for."""
        if self._targets is None:
            self._targets = self._read_targets()
        return self._targets

    def _read_targets(self) -> np.ndarray:
        if self._tensors is not None:
            return self._tensors[-1].numpy(force=True)
        dataset = cast(Any, self._dataset)
        return np.array([np.asarray(target_of(dataset[i])) for i in range(self.length)])

    def ranges(self, size: int) -> list[np.ndarray]:
        """All sample numbers in order, in pieces of at most `size`."""
        bounds = chunk_bounds(self.length, max(1, math.ceil(self.length / size)))
        return [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
