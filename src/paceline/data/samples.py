"""A task's samples, and how they are fetched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from paceline.context import Batch
from paceline.data.collating import collated, fetched
from paceline.data.placed_rows import PlacedRows
from paceline.data.streams import Stream
from paceline.errors import ConfigurationError
from paceline.schedules.collectives.steps import chunk_bounds
from paceline.system.seeding import fetch_seed, seed_all
from paceline.task.calls import target_of
from paceline.task.checks import is_stream

if TYPE_CHECKING:
    from paceline.task.task import Task


class Source(Protocol):
    """Source of a replica's batches."""

    def content(self, batch: Batch, number: int) -> Any:
        """Return a worker's slice of a global batch. `number` seeds random choices, such as augmentation.

        So the batch does not depend on the process or the time of the fetch.
        """
        ...


class Targets(Sequence[Any]):
    """Target of every sample. The values are read on first use. The length is known before that."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples.count

    def __getitem__(self, index: Any) -> Any:
        return self._samples.read_targets()[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._samples.read_targets(), dtype=dtype, copy=copy)


class Samples:
    """A task's data. Fetches the samples with given numbers as one batch. `calls` describes how a model is called."""

    def __init__(
        self,
        data: Any,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        stream: Stream | None = None,
    ) -> None:
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, tuple) and collate is not None:
            data = TensorDataset(*data)
        self._tensors = data if isinstance(data, tuple) else None
        self._dataset = data
        self.rows = data if isinstance(data, PlacedRows) and collate is None else None
        """Rows that are divided among the workers; None if every rank has all samples."""
        self.draws = self._tensors is None and self.rows is None
        """Whether fetching runs user code, which may draw random numbers."""
        self._collate = collate or default_collate
        self._stream = stream or (Stream(data, batch_size=1, seed=0) if is_stream(data) else None)
        self._targets: np.ndarray | None = None

    @classmethod
    def of(cls, task: Task, seed: int = 0, *, kept: int = 1) -> Samples:
        """Return the training samples. `kept` is the number of recent stream batches cached for slower workers."""
        data = task.build_data()
        if not is_stream(data):
            return cls(data, task.collate)
        stream = Stream(cast(Any, data), batch_size=task.batch_size, seed=seed, kept=kept)
        return cls(data, task.collate, stream=stream)

    @classmethod
    def of_test(cls, task: Task) -> Samples | None:
        """Return the test samples; None if the task has none."""
        data = task.build_test()
        return None if data is None else cls(data, task.test_collate or task.collate)

    @property
    def is_stream(self) -> bool:
        return self._stream is not None

    @property
    def length(self) -> int:
        if self._tensors is not None:
            return len(self._tensors[0])
        try:
            return len(self._dataset)
        except (TypeError, NotImplementedError):
            remedy = "give steps=… instead of epochs, or add a __len__ to the dataset"
            name = "a stream" if self.is_stream else type(self._dataset).__name__
            raise ConfigurationError("data", "must have a length for this", name, remedy) from None

    @property
    def count(self) -> int:
        """Number of samples that can be indexed. Raise if the data is a stream."""
        if self.is_stream:
            bound = "must be indexable, so that it can be divided among workers"
            remedy = "give a map-style dataset, such as a list of samples"
            raise ConfigurationError("data", bound, "a stream", remedy)
        return self.length

    def content(self, batch: Batch, number: int) -> Any:
        """See `Source`."""
        return self.load(batch.indices, number) if self.draws else self.fetch(batch.indices)

    def load(self, indices: np.ndarray, number: int) -> Any:
        """Fetch the samples with these numbers as one batch. `number` is the seed."""
        seed_all(fetch_seed(number))
        samples = self._gather(indices)
        if self._stream is not None:  # a stream sets its own seeds while it is read
            seed_all(fetch_seed(number))
        return collated(self._collate, samples, indices.tolist())

    def fetch(self, indices: np.ndarray) -> Any:
        if self._tensors is not None:
            chosen = torch.from_numpy(indices)
            return [tensor.index_select(0, chosen) for tensor in self._tensors]
        if self.rows is not None:
            return self.rows.gather(indices)
        return collated(self._collate, self._gather(indices), indices.tolist())

    def _gather(self, indices: np.ndarray) -> list[Any]:
        numbers, dataset = indices.tolist(), self._dataset
        if self._stream is not None:
            return self._stream.read(numbers)
        if getattr(dataset, "__getitems__", None) is None:
            return fetched(dataset, numbers)
        try:
            return list(dataset.__getitems__(numbers))  # several at a time, as in a DataLoader
        except Exception as error:
            named = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
            error.add_note(f"while samples {named} of the data were fetched")
            raise

    @property
    def targets(self) -> Targets:
        return Targets(self)

    def read_targets(self) -> np.ndarray:
        """Return the target of every sample as one array, which is cached."""
        if self._targets is None and self._tensors is not None:
            self._targets = cast(np.ndarray, self._tensors[-1].numpy(force=True))
        elif self._targets is None:
            self._targets = np.array([np.asarray(target_of(self._dataset[i])) for i in range(self.count)])
        return self._targets

    def ranges(self, size: int) -> list[np.ndarray]:
        """Return all sample numbers in order, in arrays of at most `size`."""
        bounds = chunk_bounds(self.length, max(1, math.ceil(self.length / size)))
        return [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
