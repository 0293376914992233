"""One epoch of two batches with every strategy, on simulated workers: what fails there fails on real ones too."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from torch.utils.data import Subset

from paceline.checking.findings import SEVERAL, Finding
from paceline.clusters.process.payload import NOT_SENT, Packed
from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.times import Constant
from paceline.errors import PacelineError, TaskError
from paceline.replica.samples import Samples
from paceline.strategies import STRATEGIES
from paceline.task import Data, Task
from paceline.task_checks import is_stream
from paceline.training import train
from paceline.user_code import user_code

__all__ = ["Trials", "fails_to_travel", "try_strategies"]

LONGEST_S = 20.0
"""After so long, no further strategy is tried."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What was tried, and what came of it."""

    failures: Mapping[str, str]
    """Why a strategy failed, by its name."""
    works: tuple[str, ...]
    untried: tuple[str, ...]

    def findings(self) -> list[Finding]:
        """Strategies that fail for the same reason are told together."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.failures.items():
            by_reason.setdefault(reason, []).append(name)
        alone = {"single"} & set(self.works)
        return [
            Finding(SEVERAL if {*names, *alone, *self.untried} == {*STRATEGIES} else ", ".join(names), reason)
            for reason, names in by_reason.items()
        ]


def fails_to_travel(task: Task) -> Finding | None:
    """Worker processes get the task as a pickle. Simulated ones do without."""
    try:
        with user_code(NOT_SENT):
            Packed(task)
    except TaskError as error:
        return Finding("all on real workers", f"{str(error).splitlines()[0]} {_reason(error)}")
    return None


def try_strategies(
    task: Task,
    make: Callable[[], nn.Module],
    data: Data,
    *,
    workers: int,
    seed: int,
    longest_s: float = LONGEST_S,
    progress: Callable[[str], None] = lambda name: None,
) -> Trials:
    """Each strategy as its name alone stands for. `progress` is told which one is next."""
    small = _small(task, make, data, workers)
    cluster = Simulated(workers=workers, compute=Constant("1ms"), link="shared-memory")
    failures: dict[str, str] = {}
    works: list[str] = []
    names = list(STRATEGIES)
    began_s = time.monotonic()
    while names and time.monotonic() - began_s < longest_s:
        name = names.pop(0)
        progress(name)
        try:
            train(small, name, cluster, steps=2, seed=seed)
            works.append(name)
        except PacelineError as error:
            failures[name] = _reason(error)
    return Trials(failures, tuple(works), tuple(names))


def _small(task: Task, make: Callable[[], nn.Module], data: Data, workers: int) -> Task:
    """The task with two batches: a whole one, and the last of an epoch, which may be smaller. It is not evaluated."""
    changed: dict[str, Any] = {
        "model": make,
        "compile": False,
        "sampler": None,
        "loaders": 0,
        "test": None,
        "metric": None,
        "target": None,
        "better": None,
    }
    if is_stream(data):
        return dataclasses.replace(task, **changed)
    length = Samples(data).length
    last = length % task.batch_size or task.batch_size
    # One for each client of a federated strategy, at least.
    count = min(length, last + task.batch_size * max(1, math.ceil((workers - last) / task.batch_size)))
    kept: Any = (
        tuple(part[:count] for part in data)
        if isinstance(data, tuple)
        else Subset(cast(Any, data), range(count))
    )
    return dataclasses.replace(task, data=kept, **changed)


def _reason(error: PacelineError) -> str:
    """Its last line: that of a traceback says what was raised."""
    return str(error).rstrip().splitlines()[-1].strip()
