"""The user's DataLoader. Every worker loads its slice of each batch."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import ConfigurationError
from paceline.loop.session import Loop

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)
"""Arguments of a DataLoader that stay as they are."""


class OrderGenerator:
    """Torch's random state for the order of the data. It is the same on all workers.

    If all workers compute the same step, it is the state of the first worker at the beginning of an iteration, so the
    order is that of the script run alone. Otherwise it is the state of the first worker at `pl.prepare`.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._state = loop.order_state
        self._is_used = False

    def first(self, batches: Iterator[Any]) -> Any:
        """Return the first batch. All workers begin an iteration together, if they compute the same step."""
        if self._loop.steps_together:
            states = self._loop.gather(torch.get_rng_state())
            self._state.copy_(states[0])
        with self.used():
            batch = next(batches, None)
        if self._loop.steps_together and self._loop.rank == 0:
            torch.set_rng_state(self._state)  # the random numbers of the order are drawn
        return batch

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Draw from this state in the block. May be nested."""
        if self._is_used:
            yield
            return
        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        self._is_used = True
        try:
            yield
        finally:
            self._is_used = False
            self._state.copy_(torch.get_rng_state())
            torch.set_rng_state(outside)


class SlicedBatches(Sampler[list[int]]):
    """A batch sampler that yields a worker's slice of each batch of another batch sampler.

    An empty slice is one sample of weight 0.
    """

    def __init__(self, batches: Any, worker: int, workers: int, order: OrderGenerator) -> None:
        self._batches = batches
        self._worker, self._workers = worker, workers
        self._order = order
        self.sizes: deque[tuple[int, int]] = deque()
        """Samples of this worker and of all workers, for each batch that has not been used yet."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        sizes = self.sizes = deque()
        batches = _lazily(self._batches)
        batch = self._order.first(batches)
        while batch is not None:
            indices = list(batch)
            own = indices[slice_of(len(indices), self._worker, self._workers)]
            sizes.append((len(own), len(indices)))
            yield own or indices[:1]
            with self._order.used():
                batch = next(batches, None)


def _lazily(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over batches. The iterator is created with the first batch."""
    yield from batches


def slice_of(total: int, worker: int, workers: int) -> slice:
    """Return a worker's slice of a batch. Slices are nearly equal; the first ones may be longer by one."""
    size, longer = divmod(total, workers)
    start = worker * size + min(worker, longer)
    return slice(start, start + size + (worker < longer))


class SlicedLoader(DataLoader[Any]):
    """A DataLoader of one worker's slices. Its length is that of the user's loader."""

    def __init__(self, loader: DataLoader[Any], loop: Loop) -> None:
        self._order = OrderGenerator(loop)
        self._slices = SlicedBatches(loader.batch_sampler, loop.rank, loop.workers, self._order)
        self._loop = loop
        kept = {name: getattr(loader, name) for name in _KEPT}
        super().__init__(loader.dataset, batch_sampler=self._slices, **kept)

    def __iter__(self) -> Any:
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        with contextlib.nullcontext() if self._loop.steps_together else self._order.used():
            contents = super().__iter__()
        for content in contents:
            if self._loop.is_over:
                return
            self._loop.gradients.begin_micro_batch(*self._slices.sizes.popleft())
            yield content


def check_loader(loader: Any) -> None:
    """Refuse data that cannot be sliced batch by batch."""
    slicing = "or omit the loader, and slice each batch with pl.shard"
    if not isinstance(loader, DataLoader):
        kind = type(loader).__name__
        raise ConfigurationError("loader", "must be a torch.utils.data.DataLoader", kind, slicing)
    if isinstance(loader.dataset, IterableDataset):
        bound = "must have a dataset with a length: workers cannot tell the samples of an iterable one apart"
        remedy = f"use a map-style dataset, {slicing}"
        raise ConfigurationError("loader", bound, type(loader.dataset).__name__, remedy)
    if loader.batch_sampler is None:
        remedy = f"give it a batch_size or a batch_sampler, {slicing}"
        raise ConfigurationError("loader", "must make batches itself", "batch_size=None", remedy)
    if isinstance(_innermost(loader.batch_sampler), DistributedSampler):
        remedy = "remove it: pl.prepare gives each worker its slice of every batch"
        raise ConfigurationError(
            "loader", "must have the batches of all workers", "DistributedSampler", remedy
        )
    if not getattr(loader, "in_order", True):
        raise ConfigurationError("loader", "must keep the order of its batches", "in_order=False", "omit it")


def _innermost(sampler: Any) -> Any:
    return getattr(sampler, "sampler", sampler)


def shard_of(loop: Loop, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this worker's slice of each tensor of a batch, along the first dimension."""
    totals = {len(tensor) for tensor in tensors}
    if len(totals) != 1 or not tensors or 0 in totals:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "none"
        bound = "must be tensors of the same length of at least 1"
        raise ConfigurationError("batch", bound, found, "pass the inputs and targets of one batch")
    (total,) = totals
    own = slice_of(total, loop.rank, loop.workers)
    loop.gradients.begin_micro_batch(own.stop - own.start, total)
    return [tensor[own] if own.stop > own.start else tensor[:1] for tensor in tensors]
