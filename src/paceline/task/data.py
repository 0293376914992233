"""How a task's samples become batches: settings taken from a DataLoader, streams, and sampling weights.

Tasks have the type Any here: `paceline.task.task` imports this module. Torch is imported late.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.task.checks import is_factory, is_stream, require
from paceline.task.tables import Table, is_table

if TYPE_CHECKING:
    import numpy as np

_log = logging.getLogger("paceline")


class Repeated:
    """A stream made from a factory, which is called again for every pass."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def __iter__(self) -> Iterator[Any]:
        return iter(self._factory())


def as_tensors(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays as tensors that share their memory. A memory-mapped file stays memory-mapped."""
    import torch

    with warnings.catch_warnings():
        # Paceline never writes to these arrays, so read-only memory is fine.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return tuple(part if isinstance(part, torch.Tensor) else torch.from_numpy(part) for part in columns)


def settled(task: Any) -> Mapping[str, Any]:
    """Return the task arguments to replace: settings taken from DataLoaders, and defaults."""
    from torch.utils.data import DataLoader

    found: dict[str, Any] = {}
    if isinstance(task.data, DataLoader):
        found |= _training_loader(task, task.data)
    if isinstance(task.test, DataLoader):
        found |= _test_loader(task, task.test)
    for name, value in (("loaders", 0), ("prefetch", 2)):
        if getattr(task, name) is None:
            found.setdefault(name, value)
    if is_table(task.data):
        found["data"] = Table(task.data)
    if inspect.isgeneratorfunction(task.data):
        found["data"] = Repeated(task.data)
    return found


def _training_loader(task: Any, loader: Any) -> dict[str, Any]:
    """Return the settings that the task leaves open, taken from its training DataLoader."""
    dataset, sampler, shuffle = _samples_of("data", loader)
    found: dict[str, Any] = {"data": dataset}
    if task.loaders is None:
        found["loaders"] = loader.num_workers
    if task.prefetch is None:
        found["prefetch"] = loader.prefetch_factor or 2
    if not task.batch_size:
        found["batch_size"] = loader.batch_size or loader.batch_sampler.batch_size
    if task.collate is None:
        found["collate"] = _collate_of(loader)
    if task.sampler is None and task.shuffle is None:
        found |= {"sampler": sampler, "shuffle": shuffle}
    if not is_stream(dataset):
        found["drop_last"] = task.drop_last or loader.drop_last or loader.batch_sampler.drop_last
    _name_the_rest(loader)
    return found


def _test_loader(task: Any, loader: Any) -> dict[str, Any]:
    dataset, sampler, _ = _samples_of("test", loader)
    remedy = "give the dataset itself: each sample is tested once"
    require(sampler is None, "test", "must not be sampled by weights", type(loader.sampler).__name__, remedy)
    collate = _collate_of(loader) if task.test_collate is None else task.test_collate
    return {"test": dataset, "test_collate": collate}


def _collate_of(loader: Any) -> Any:
    from torch.utils.data import default_collate

    return None if loader.collate_fn is default_collate else loader.collate_fn


def _samples_of(argument: str, loader: Any) -> tuple[Any, Any, bool | None]:
    """Return a loader's dataset, its weighted sampler (None if it has none), and whether it shuffles."""
    from torch.utils import data

    dataset, remedy = loader.dataset, "give its dataset, and the batch size to the task"
    own = "must be a DataLoader without its own batch sampler, or a dataset"
    if is_stream(dataset) and loader.batch_size:
        remedy = "move its work into the dataset: every rank reads the whole stream"
        bound = "must be a DataLoader without worker_init_fn if its dataset is a stream"
        require(loader.worker_init_fn is None, argument, bound, loader.worker_init_fn, remedy)
        return dataset, None, None
    batches = type(loader.batch_sampler)
    require(batches is data.BatchSampler, argument, own, batches.__name__, remedy)
    sampler = loader.batch_sampler.sampler
    kind = type(sampler)
    if kind is data.SequentialSampler:
        return dataset, None, False
    if kind is data.RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset):
        return dataset, None, True
    if kind is data.DistributedSampler:
        return dataset, None, sampler.shuffle
    if kind is data.SubsetRandomSampler:
        return data.Subset(dataset, list(sampler.indices)), None, True
    if kind is data.WeightedRandomSampler:
        return dataset, sampler, None
    bound = "must be a DataLoader with one of torch's samplers, without replacement"
    remedy = "give its dataset, and sampler=… with weights to draw some samples more often"
    raise ConfigurationError(argument, bound, kind.__name__, remedy)


def _name_the_rest(loader: Any) -> None:
    """Log the settings of a loader that Paceline does not use."""
    order = type(getattr(loader.batch_sampler, "sampler", None)).__name__
    rest = {
        "generator: the run's seed sets the order": loader.generator is not None,
        "worker_init_fn: loaders are seeded by rank and step": loader.worker_init_fn is not None,
        "timeout": loader.timeout > 0,
        "pin_memory": loader.pin_memory,
        "multiprocessing_context": loader.multiprocessing_context is not None,
        "DistributedSampler: Paceline itself gives each worker its part": order == "DistributedSampler",
    }
    named = [what for what, is_there in rest.items() if is_there]
    if named:
        _log.warning("settings of the DataLoader that are not used: %s", "; ".join(named))


def check_batching(task: Any) -> None:
    """Check the batching arguments, as far as possible before the data is built."""
    for argument in ("collate", "test_collate"):
        given = getattr(task, argument)
        remedy = "give a function that takes a list of samples and returns one batch"
        require(given is None or callable(given), argument, "must be a callable", given, remedy)
    for argument, least in (("loaders", 0), ("prefetch", 1)):
        given = getattr(task, argument)
        counts = isinstance(given, int) and not isinstance(given, bool) and given >= least
        remedy = "loaders is the number of loader processes per worker, prefetch the number of batches each prefetches"
        require(counts, argument, f"must be a whole number of at least {least}", given, remedy)
    for argument, fits in (("shuffle", (bool, type(None))), ("drop_last", bool)):
        given = getattr(task, argument)
        require(isinstance(given, fits), argument, "must be True or False", given, "or omit it")
    both = task.sampler is not None and task.shuffle is not None
    remedy = "the weights determine the order"
    require(not both, "shuffle", "must not be given together with a sampler", task.shuffle, remedy)
    if task.sampler is not None and not is_factory(task.data) and not is_stream(task.data):
        data: Any = task.data
        weights_of(task.sampler, len(data[0]) if isinstance(data, tuple) else len(data))
    if is_stream(task.data):
        check_stream(task)


def check_stream(task: Any) -> None:
    """Reject arguments that need samples which can be indexed."""
    words = {"sampler": task.sampler, "shuffle": task.shuffle or None, "drop_last": task.drop_last or None}
    remedy = "a stream is read in its own order, pass after pass; give a map-style dataset instead"
    for argument, given in words.items():
        require(given is None, argument, "must not be given if the data is a stream", given, remedy)


def weights_of(sampler: Any, length: int) -> tuple[np.ndarray, int]:
    """Return the weights of `length` samples, and the number of samples drawn in an epoch."""
    import numpy as np
    from torch.utils.data import WeightedRandomSampler

    drawn = length
    if isinstance(sampler, WeightedRandomSampler):
        bound, remedy = "must draw with replacement", "set replacement=True"
        require(sampler.replacement, "sampler", bound, "WeightedRandomSampler", remedy)
        sampler, drawn = sampler.weights, sampler.num_samples
    remedy = "give one weight for each sample, such as [1.0, 0.5, …]"
    try:
        weights = np.asarray(sampler, dtype=np.float64)
    except (TypeError, ValueError):
        kind = type(sampler).__name__
        raise ConfigurationError("sampler", "must be a sequence of weights", kind, remedy) from None
    shape = list(weights.shape)
    require(shape == [length], "sampler", f"must be {length} weights, one for each sample", shape, remedy)
    usable = bool(np.isfinite(weights).all() and (weights >= 0).all() and weights.any())
    bound = "must be finite weights of at least 0, and not all 0"
    require(usable, "sampler", bound, _worst(weights), remedy)
    return weights, drawn


def _worst(weights: Sequence[float] | np.ndarray) -> str:
    import numpy as np

    found = np.flatnonzero(~(np.isfinite(weights) & (np.asarray(weights) >= 0)))
    return f"{weights[found[0]]} for sample {found[0]}" if len(found) else "0 for every sample"
