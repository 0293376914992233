"""Trial of every strategy for two batches on simulated workers. A strategy that fails here also fails on real
workers."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from torch.utils.data import Subset

from paceline.checking.findings import SEVERAL, Finding
from paceline.clusters.process.payload import NOT_SENT, Packed
from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.times import Constant
from paceline.data.samples import Samples
from paceline.errors import PacelineError, TaskError
from paceline.model.loss_trial import NOT_A_MEAN
from paceline.strategies import STRATEGIES
from paceline.system.user_code import user_code
from paceline.task.checks import is_stream
from paceline.task.task import Data, Task
from paceline.training import train

LONGEST_S = 60.0
"""Time after which no further strategy is tried."""
_CUTTING = 4.0
"""Time of a trial that cuts the model, relative to a trial that does not. Cutting traces the model."""


@dataclass(frozen=True, slots=True)
class Trials:
    """The results of the trials."""

    failures: Mapping[str, str]
    """Reason of the failure, by strategy."""
    works: tuple[str, ...]
    untried: tuple[str, ...]
    remaining_s: float | None = None
    """Estimated seconds for the strategies that were not tried. None if no strategy was tried."""

    def findings(self) -> list[Finding]:
        """Return the failures. Strategies that fail for the same reason are in one finding.

        Reasons that differ in numbers (ranks, sizes of slices) or in the strategy's name are the same.
        """
        by_cause: dict[str, list[str]] = {}
        for name, reason in self.failures.items():
            by_cause.setdefault(re.sub(r"\d+", "#", reason.replace(name, "#")), []).append(name)
        alone = {"single"} & set(self.works)
        return [
            Finding(
                SEVERAL if {*names, *alone, *self.untried} == {*STRATEGIES} else ", ".join(names),
                self.failures[names[0]],
            )
            for names in by_cause.values()
        ]


def fails_to_travel(task: Task) -> Finding | None:
    """Return a finding if the task cannot be pickled. Worker processes need this, simulated workers do not."""
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
    """Try each strategy with its default options, the cheapest first, until `longest_s` would be exceeded.

    `progress` is called with the name of the next strategy.
    """
    small = _small(task, make, data, workers)
    cluster = Simulated(workers=workers, compute=Constant("1ms"), link="shared-memory")
    failures: dict[str, str] = {}
    works: list[str] = []
    names = sorted(STRATEGIES, key=_cost)
    began_s, paid = time.monotonic(), 0.0
    remaining_s = None
    while names:
        took_s = time.monotonic() - began_s
        if took_s + (took_s / paid * _cost(names[0]) if paid else 0.0) >= longest_s:
            break
        name = names.pop(0)
        paid += _cost(name)
        progress(name)
        try:
            with _told_once():
                train(small, name, cluster, steps=2, seed=seed)
            works.append(name)
        except PacelineError as error:
            failures[name] = _reason(error)
    if paid:
        remaining_s = (time.monotonic() - began_s) / paid * sum(map(_cost, names))
    return Trials(failures, tuple(works), tuple(names), remaining_s)


def _cost(name: str) -> float:
    """Return the expected time of a trial, relative to one of `single`: samples computed, and tracing."""
    kind = STRATEGIES[name]
    epochs = next((field.default for field in dataclasses.fields(kind) if field.name == "epochs"), None)
    passes = float(epochs) if isinstance(epochs, (int, float)) else 1.0
    return passes * (_CUTTING if getattr(kind, "cuts_model", False) else 1.0)


@contextlib.contextmanager
def _told_once() -> Iterator[None]:
    """Suppress the warning that every strategy would repeat: `check_task` reports it as a finding."""

    def is_new(record: logging.LogRecord) -> bool:
        return record.args != (NOT_A_MEAN,)

    log = logging.getLogger("paceline")
    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def _small(task: Task, make: Callable[[], nn.Module], data: Data, workers: int) -> Task:
    """Return the task with two batches and no metric: a full batch, and the last of an epoch, which may be smaller."""
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
    # At least one sample for each client of a federated strategy.
    count = min(length, last + task.batch_size * max(1, math.ceil((workers - last) / task.batch_size)))
    kept: Any = (
        tuple(part[:count] for part in data)
        if isinstance(data, tuple)
        else Subset(cast(Any, data), range(count))
    )
    return dataclasses.replace(task, data=kept, **changed)


def _reason(error: PacelineError) -> str:
    """Return the last line of the error: in a traceback, this is the exception that was raised."""
    return str(error).rstrip().splitlines()[-1].strip()
