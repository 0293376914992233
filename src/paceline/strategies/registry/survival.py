"""Which ranks a run of each strategy can lose and still continue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.strategies.registry.table import STRATEGIES, describe
from paceline.strategies.shared.pipelining.program import SegmentedStrategy
from paceline.task.task import Task


def can_regroup(strategy: Strategy) -> bool:
    """Return whether the members of a run regroup without a lost worker, if the cluster has `min_workers`."""
    if getattr(strategy, "in_step", False):
        return "worker" in strategy.replicates  # no worker has a state that the others cannot copy
    return strategy.state_at in ("server", "workers") or returns_to_checkpoint(strategy)


def returns_to_checkpoint(strategy: Strategy) -> bool:
    """Return whether the members go back to the newest checkpoint, because a lost rank had a part of the state."""
    return strategy.state_at == "shards" and tuple(strategy.replicates) == ("worker",)


def continues_by_itself(strategy: Strategy) -> bool:
    """Return whether the programs of a strategy handle lost workers, and do not need to start again."""
    return bool(strategy.expendable) and not strategy.state_at


def average_period(strategy: Strategy) -> int:
    """Return the steps between two averages of workers that have models of their own. They repeat at most these."""
    return int(getattr(strategy, "period", 1))


class Survival(NamedTuple):
    """Ranks that a run of one strategy can lose."""

    name: str
    regroups: str
    """What may be lost with `min_workers`. Empty if it is refused."""
    expendable: tuple[str, ...]
    """Roles that may lose ranks without `min_workers`. The reporter may not be lost."""


_BY_ITSELF = "continues without any worker that is not the reporter, and repeats nothing"
_LOST = {
    "": "continues without any worker",
    "server": "continues without any worker that is not the server",
    "workers": "continues without any worker; the model of a lost worker is left out",
    "shards": "goes back to the newest checkpoint without any worker",
}


def survivals() -> Iterator[Survival]:
    for name, kind in STRATEGIES.items():
        default = kind()
        regroups = _BY_ITSELF if kind.expendable else ""
        if can_regroup(default):
            regroups = _LOST[default.state_at]
        yield Survival(name, regroups, tuple(kind.expendable))


def survival_rows() -> list[str]:
    """Return the rows of the table in docs/failures.md."""
    return [_row(each) for each in survivals()]


def _row(each: Survival) -> str:
    roles = " or ".join(each.expendable)
    alone = f"continues while it has enough {roles}s and the reporter" if roles else "ends"
    return f"| `{each.name}` | {each.regroups or 'refused'} | {alone} |"


class ElasticCluster(Protocol):
    """What a cluster says about lost workers."""

    @property
    def workers(self) -> int: ...
    @property
    def min_workers(self) -> int | None: ...
    @property
    def restart(self) -> bool: ...


def check_elastic(task: Task, strategy: Strategy, cluster: ElasticCluster, checkpoint: object) -> None:
    """Raise an error if a run with `min_workers` is not possible."""
    min_workers = cluster.min_workers
    if min_workers is None:
        return
    if can_regroup(strategy):
        _check_numbers(strategy, min_workers, cluster.workers)
        _check_options(task, strategy, min_workers, checkpoint)
    elif not continues_by_itself(strategy):
        can = ", ".join(each.name for each in survivals() if each.regroups)
        bound = f"must not be given with {describe(strategy)}: no other rank has the state of a lost one"
        raise ConfigurationError("min_workers", bound, min_workers, f"use {can}, or omit min_workers")
    elif cluster.restart:
        can = ", ".join(name for name, kind in STRATEGIES.items() if can_regroup(kind()))
        bound = f"must be False with {describe(strategy)}, whose programs continue by themselves"
        raise ConfigurationError("restart", bound, True, f"omit it, or use {can}")


def _check_numbers(strategy: Strategy, min_workers: int, workers: int) -> None:
    """Raise an error if the strategy is impossible with one of the numbers of workers that may be left."""
    for left in range(workers - 1, min_workers - 1, -1):
        try:
            _check_left(strategy, left)
        except ConfigurationError as error:
            bound = f"must be above {left} with {describe(strategy)} ({error.argument} {error.bound})"
            raise ConfigurationError("min_workers", bound, min_workers, f"use {left + 1}") from error


def _check_left(strategy: Strategy, workers: int) -> None:
    if isinstance(strategy, SegmentedStrategy):
        strategy.check_left(workers)
    else:
        strategy.roles(workers)


def _check_options(task: Task, strategy: Strategy, min_workers: int, checkpoint: object) -> None:
    """Raise an error for options that a repeated step does not support."""
    if returns_to_checkpoint(strategy) and checkpoint is None:
        bound = f"needs checkpoint with {describe(strategy)}: a lost rank has a part of the state"
        raise ConfigurationError("min_workers", bound, min_workers, "write checkpoint=folder")
    excluded = {
        # Programs end at a checkpoint. Those of workers with models of their own end after each period.
        "checkpoint": checkpoint if strategy.state_at == "workers" else None,
        "ema": None if strategy.state_at == "server" else task.ema,  # only the reporter has the average
        "step": task.step if len(task.turns) > 1 else None,
        "sync_batch_norm": task.sync_batch_norm or None,
    }
    for argument, value in excluded.items():
        if value is not None:
            bound, remedy = f"excludes {argument} with {describe(strategy)}", "omit one of the two"
            raise ConfigurationError("min_workers", bound, min_workers, remedy)
