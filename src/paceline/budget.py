"""How long a run is: so many updates, or so many passes over the data.

An epoch is one pass over the samples, whatever the strategy. An update of `all-reduce` takes a whole global batch, one
of `async` a worker's slice of it, one of `fedavg` several passes over the clients' own data. How many samples an update
takes is seen in a short simulation without mathematics, so that no strategy needs to be known here. The model of that
simulation is a stand-in: samples do not depend on it, and a factory may read gigabytes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline.clusters.job import Job
from paceline.clusters.outcome import assemble
from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.costs import times
from paceline.costs.link import Link
from paceline.errors import ConfigurationError, TaskError
from paceline.replica.batches import GlobalBatches
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples
from paceline.replica.shapes import ShapeReplica
from paceline.task import Task

__all__ = ["check_length", "count_updates", "count_whole_batches"]

_log = logging.getLogger("paceline")

DEFAULT_EPOCHS = 10

_FIRST = 2
"""Updates of the first simulation. It is enough where an update takes whole batches, or equal slices of them."""
_BATCHES, _SLICES = 4, 256
"""Where slices differ, the simulation is of so many batches, and of so many slices, at least."""
_LOCAL_BATCHES = 1024
"""Where an update takes more than a batch: of so many."""
_TRIES = 8


def check_length(steps: int | None, epochs: float | None) -> None:
    """Refuse what is no length."""
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
    """The updates of a run: at least one, and the fewest that see so many passes' worth of samples.

    The seed is the run's: where a strategy draws whose samples it takes, the simulation draws the same.
    """
    check_length(steps, epochs)
    if steps is not None:
        return steps
    passes = _Passes(task)
    wanted = passes.samples(epochs)
    try:
        count = _Simulations(passes.task, strategy, tuple(roles), seed).count(wanted, passes)
    except TaskError:
        raise
    except Exception as error:  # it may be unable to run in virtual time, and yet run well elsewhere
        text = "how many samples an update takes was not found (%s: %s); it is taken to be a whole batch"
        _log.info(text, type(error).__name__, error)
        count = passes.whole_batches(wanted)
    return count * (len(task.turns) or 1)  # a batch serves each model's turn


def count_whole_batches(task: Task, *, steps: int | None, epochs: float | None) -> int:
    """The updates of a run, each of which takes a whole global batch."""
    check_length(steps, epochs)
    passes = None if steps is not None else _Passes(task)
    return steps or (passes.whole_batches(passes.samples(epochs)) if passes else 1)


class _Passes:
    """A task's samples, as its global batches go through them."""

    def __init__(self, task: Task) -> None:
        # Built once: a factory may read gigabytes.
        self.task = dataclasses.replace(task, data=task.build_data())
        samples = Samples.of(self.task)
        self._batches = GlobalBatches.of(self.task, samples, 0)
        self.batch_size = self._batches.batch_size
        self._is_stream = samples.is_stream
        self.length = samples.length if self._is_stream else self._batches.samples_per_epoch

    def samples(self, epochs: float | None) -> float:
        return (DEFAULT_EPOCHS if epochs is None else epochs) * self.length

    def batches(self, samples: float) -> float:
        """How many global batches have so many samples. The last of a pass may be smaller than the others."""
        if self._is_stream:
            return samples / self.batch_size
        passes, rest = divmod(samples, self.length)
        steps, size = self._batches.steps_per_epoch, self.batch_size
        full = (steps - 1) * size
        part = rest / size if rest <= full else steps - 1 + (rest - full) / (self.length - full)
        return passes * steps + part

    def whole_batches(self, samples: float) -> int:
        return _up(self.batches(samples))


class _Simulations:
    """What a strategy does with a task's batches."""

    def __init__(self, task: Task, strategy: Strategy, roles: tuple[str, ...], seed: int) -> None:
        self._task = dataclasses.replace(
            task,
            model=_stand_in,
            loss=None,
            step=None,
            turns=(),
            optimizer=_Idle,
            schedule=None,
            schedule_every="step",
            accumulate=1,
            ema=None,
            compile=False,
            predict=None,
            test=None,
            metric=None,
            target=None,
            better=None,
        )
        self._job = Job(strategy=strategy, roles=roles, seed=seed, task=self._task)

    def count(self, wanted: float, passes: _Passes) -> int:
        seen = self._samples_by_update(_FIRST, times.Constant(1.0))
        if passes.batches(seen[-1]) == len(seen):
            return passes.whole_batches(wanted)
        alike = all(samples == step * seen[0] for step, samples in enumerate(seen, start=1))
        evenly = passes.batch_size % self._job.workers == 0
        if not alike or not (evenly if seen[0] < passes.batch_size else seen[0] % passes.length == 0):
            seen = self._look_longer(seen, wanted, passes)
        for step, samples in enumerate(seen, start=1):
            if samples >= wanted:
                return step
        return max(1, _up(len(seen) * passes.batches(wanted) / passes.batches(seen[-1])))

    def _look_longer(self, seen: list[int], wanted: float, passes: _Passes) -> list[int]:
        """Slices differ, or clients do. Chance decides whose come first, as it does in a run."""
        workers, compute = self._job.workers, times.ShiftedExponential(1.0, 0.001)
        for _ in range(_TRIES):
            an_update = max(passes.batches(seen[-1]) / len(seen), 1 / workers)
            largest = max(after - before for before, after in pairwise([0, *seen]))
            enough = _LOCAL_BATCHES if largest > passes.batch_size else max(_BATCHES, _SLICES / workers)
            steps = _up(min(enough, passes.batches(wanted)) / an_update) + 1
            # So that where each update takes one slice, every worker has had as many turns.
            steps += -steps % workers if an_update * workers < 2 else 0
            if steps <= len(seen) or seen[-1] >= wanted:
                break
            seen = self._samples_by_update(steps, compute)
        return seen

    def _samples_by_update(self, steps: int, compute: times.Times) -> list[int]:
        """Samples seen by the end of each update."""
        job = dataclasses.replace(self._job, steps=steps)
        cluster = _Rehearsal(workers=job.workers, compute=compute, link=Link.ideal(), math="none")
        history = assemble(job, str(cluster), cluster.run(job), None).history
        if not history or history[-1].samples <= 0:
            raise ValueError("its updates take no samples")
        return [record.samples for record in history]


class _Rehearsal(Simulated):
    """Without mathematics, and with little memory: one small replica serves all ranks.

    It is not of torch's meta tensors, for some operations on these import a compiler, which takes seconds.
    """

    def _replicas(self, job: Job) -> list[tuple[int, Replica | None]]:
        assert job.task is not None
        module = job.task.build_model(job.seed)
        shapes = ShapeReplica(job.task, module, seed=job.seed)
        shapes.is_stand_in = True
        return [(rank, shapes) for rank in range(job.ranks)]


def _stand_in() -> nn.Module:
    """It can be cut into as many parts as a strategy may want."""
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(16)))


class _Idle(torch.optim.Optimizer):
    """Updates nothing. Torch's own import that compiler when they are made."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.param_groups = [{"params": list(params)}]
        self.state = defaultdict(dict)
        self.defaults = {}

    def step(self, closure: Any = None) -> Any:
        return None


def _up(count: float) -> int:
    """Rounded up, but for what floating-point numbers add."""
    return math.ceil(count - 1e-9 * max(1.0, count))
