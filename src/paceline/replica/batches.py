"""Which samples make up the global batch of a step."""

from __future__ import annotations

import math

import numpy as np

from paceline.context import Batch

__all__ = ["GlobalBatches"]


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
