"""Which samples make up the global batch of a step, and how they are fetched."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from paceline.context import Batch
from paceline.errors import ConfigurationError
from paceline.replica.collating import collated, fetched
from paceline.schedules.steps import chunk_bounds

__all__ = ["GlobalBatches", "Samples"]


_KEPT_ORDERS = 16


class GlobalBatches:
    """The global batches of a run: set by the seed and the batch size alone, whatever the number of workers."""

    def __init__(self, length: int, batch_size: int, seed: int) -> None:
        self.length = length
        self.batch_size = min(batch_size, length)
        self.seed = seed
        self.steps_per_epoch = math.ceil(length / self.batch_size)
        # The last batch of an epoch may be smaller.
        self._last_size = length - (self.steps_per_epoch - 1) * self.batch_size
        self._orders: dict[int, np.ndarray] = {}

    def slice(self, step: int, worker: int, workers: int) -> Batch:
        """Worker number `worker`'s nearly equal part of the batch of `step`. May be empty."""
        total = self.batch_size if (step + 1) % self.steps_per_epoch else self._last_size
        size, longer = divmod(total, workers)
        if worker < longer:
            return Batch(step, worker * (size + 1), size + 1, total, self.indices)
        return Batch(step, worker * size + longer, size, total, self.indices)

    def indices(self, step: int) -> np.ndarray:
        epoch, position = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[position * self.batch_size : (position + 1) * self.batch_size]

    def _order(self, epoch: int) -> np.ndarray:
        order = self._orders.get(epoch)
        if order is None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.length)
            # Asynchronous workers may be in different epochs; some orders are kept for them.
            if len(self._orders) >= _KEPT_ORDERS:
                self._orders.pop(min(self._orders))
            self._orders[epoch] = order
        return order


class Samples:
    """A task's data: fetches the samples of given numbers as the model's inputs and the target."""

    def __init__(self, data: tuple[Tensor, ...] | Dataset[Any]) -> None:
        if isinstance(data, TensorDataset):
            data = data.tensors
        self._tensors = data if isinstance(data, tuple) else None
        self._dataset = None if isinstance(data, tuple) else data
        self.length = len(data[0]) if isinstance(data, tuple) else len(cast(Any, data))
        self.draws = self._tensors is None
        """Whether fetching runs code of the user's, which may draw random numbers."""
        self._targets: np.ndarray | None = None

    def fetch(self, indices: np.ndarray) -> tuple[list[Tensor], Any]:
        if self._tensors is not None:
            chosen = torch.from_numpy(indices)
            columns = [tensor.index_select(0, chosen) for tensor in self._tensors]
        else:
            dataset = cast(Any, self._dataset)
            numbers = indices.tolist()
            columns = collated(default_collate, fetched(dataset, numbers), numbers)
        if not isinstance(columns, (list, tuple)) or len(columns) < 2:
            raise ConfigurationError(
                "data", "must yield the model's inputs and then a target", type(columns).__name__
            )
        return list(columns[:-1]), columns[-1]

    def targets(self) -> np.ndarray:
        """The target of every sample: one array, however often it is asked for."""
        if self._targets is None:
            self._targets = self._read_targets()
        return self._targets

    def _read_targets(self) -> np.ndarray:
        if self._tensors is not None:
            return self._tensors[-1].numpy(force=True)
        dataset = cast(Any, self._dataset)
        return np.array([np.asarray(dataset[i][-1]) for i in range(self.length)])

    def ranges(self, size: int) -> list[np.ndarray]:
        """All sample numbers in order, in pieces of at most `size`."""
        bounds = chunk_bounds(self.length, max(1, math.ceil(self.length / size)))
        return [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
