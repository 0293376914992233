"""The length of a run: a number of updates, or a number of passes over the data.

An epoch is one pass over the samples, for every strategy. An update of `all-reduce` uses a whole global batch, an
update of `async` one worker's slice, and an update of `fedavg` several passes over the clients' own data. If updates
do not use one whole batch, the strategy declares their samples: see `PartialBatches` and `ClientRounds`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.clusters.rank.streams import PROGRAM_STREAM
from paceline.context import Strategy
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import ConfigurationError
from paceline.optim.schedules import in_steps
from paceline.runs.run import Run
from paceline.task.task import Task

_log = logging.getLogger("paceline")

DEFAULT_EPOCHS = 10

_MUCH = 0.1

_MOST_BATCHES, _MOST_ROUNDS = 1024, 10_000
"""Rounds of clients are counted one by one up to these limits. The mean is used for the rest of the run."""


@runtime_checkable
class PartialBatches(Protocol):
    """A strategy with updates that use slices of global batches."""

    def batches_per_update(self, workers: int) -> float:
        """Return the mean number of global batches in an update: 1 / workers if it uses one worker's slice."""
        ...


@runtime_checkable
class ClientRounds(Protocol):
    """A strategy with updates that use the clients' own samples."""

    def samples_by_round(
        self, samples: Samples, clients: int, rng_of: Callable[[int], np.random.Generator]
    ) -> Iterator[int]:
        """Yield the number of samples in each round. `rng_of(rank)` is the random stream of that rank in the run."""
        ...


def check_length(steps: int | None, epochs: float | None) -> None:
    """Check `steps` and `epochs`."""
    if steps is not None and epochs is not None:
        raise ConfigurationError("steps", "must not be given together with epochs", steps, "give one of them")
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise ConfigurationError("steps", "must be a whole number of at least 1", steps)
    passes = DEFAULT_EPOCHS if epochs is None else epochs
    if not isinstance(passes, (int, float)) or not 0 < passes < math.inf:
        raise ConfigurationError("epochs", "must be above 0", epochs)


def count_updates(
    task: Task,
    strategy: Strategy,
    roles: Sequence[str],
    *,
    steps: int | None,
    epochs: float | None,
    seed: int = 0,
) -> int:
    """Return the number of updates in a run: the fewest that use the samples of `epochs` passes, and at least one.

    `seed` is the run's seed: the clients of each round are those that the run samples.
    """
    check_length(steps, epochs)
    if steps is not None:
        return steps
    passes = _Passes(task)
    wanted = passes.samples(epochs)
    workers = sum(role != "server" for role in roles)
    count = passes.whole_batches(wanted)
    if isinstance(strategy, PartialBatches):
        count = _up(passes.batches(wanted) / strategy.batches_per_update(workers))
    elif isinstance(strategy, ClientRounds):
        count = _count_rounds(strategy, passes, wanted, workers, seed) or count
    return count * (len(task.turns) or 1)  # one batch is used for the turn of each model


def count_whole_batches(task: Task, *, steps: int | None, epochs: float | None) -> int:
    """Return the updates of a run in which every update uses a whole global batch."""
    check_length(steps, epochs)
    passes = None if steps is not None else _Passes(task)
    return steps or (passes.whole_batches(passes.samples(epochs)) if passes else 1)


def schedule_in_steps(task: Task, in_epoch: Callable[[], int], every: str | int) -> Any:
    """Return the task's schedules, with lengths in steps. An epoch has `in_epoch()` updates of all models."""
    if not isinstance(task.schedule, Mapping):
        return in_steps(task.schedule, lambda: in_epoch() / (every if isinstance(every, int) else 1))

    def steps_of(name: str) -> float:
        if isinstance(every, int):
            return in_epoch() / every
        return in_epoch() * (task.turns.count(name) / len(task.turns) if task.turns else 1)

    return {name: in_steps(each, partial(steps_of, name)) for name, each in task.schedule.items()}


def compare_length(run: Run, epochs: float) -> None:
    """Log a warning if a run used many more or many fewer samples than requested."""
    seen = run.epochs
    if seen is not None and abs(seen - epochs) > max(_MUCH * epochs, seen / run.steps):
        _log.warning(
            "%s processed %.3g epochs in %d updates instead of %g epochs",
            run.strategy,
            seen,
            run.steps,
            epochs,
        )


class _Passes:
    """A task's samples, and their division into global batches."""

    def __init__(self, task: Task) -> None:
        self.all_samples = Samples.of(task)
        self._batches = GlobalBatches.of(task, self.all_samples, 0)
        self.batch_size = self._batches.batch_size
        self._is_stream = self.all_samples.is_stream
        self.length = self.all_samples.length if self._is_stream else self._batches.samples_per_epoch

    def samples(self, epochs: float | None) -> float:
        return (DEFAULT_EPOCHS if epochs is None else epochs) * self.length

    def batches(self, samples: float) -> float:
        """Return the number of global batches in `samples` samples. The last batch of a pass may be smaller."""
        if self._is_stream:
            return samples / self.batch_size
        passes, rest = divmod(samples, self.length)
        steps, size = self._batches.steps_per_epoch, self.batch_size
        full = (steps - 1) * size
        part = rest / size if rest <= full else steps - 1 + (rest - full) / (self.length - full)
        return passes * steps + part

    def whole_batches(self, samples: float) -> int:
        return _up(self.batches(samples))


def _count_rounds(
    strategy: ClientRounds, passes: _Passes, wanted: float, clients: int, seed: int
) -> int | None:
    """Return the number of rounds that use `wanted` samples; None if the rounds fail, as the run itself will."""

    def rng_of(rank: int) -> np.random.Generator:
        return np.random.default_rng([seed, rank, PROGRAM_STREAM])

    count = seen = 0
    try:
        for used in strategy.samples_by_round(passes.all_samples, clients, rng_of):
            count, seen = count + 1, seen + used
            if seen >= wanted:
                return count
            if seen >= _MOST_BATCHES * passes.batch_size or count == _MOST_ROUNDS:
                break
    except Exception as error:  # a user's partition may fail
        _log.info("the samples of a round are unknown (%s: %s)", type(error).__name__, error)
    return _up(count * passes.batches(wanted) / passes.batches(seen)) if seen else None


def _up(count: float) -> int:
    """Round up to at least 1, ignoring floating-point error."""
    return max(1, math.ceil(count - 1e-9 * max(1.0, count)))
