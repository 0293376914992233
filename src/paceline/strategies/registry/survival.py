"""Which ranks a run of each strategy can lose and still continue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.strategies.registry.table import STRATEGIES, describe
from paceline.task.task import Task


def can_regroup(strategy: Strategy) -> bool:
    """Return whether the run continues with fewer workers if the cluster has `min_workers`.

    Every worker must hold the whole model after each step, and no other state: the others can then copy it.
    """
    return bool(getattr(strategy, "in_step", False)) and "worker" in strategy.replicates


class Survival(NamedTuple):
    """Ranks that a run of one strategy can lose."""

    name: str
    regroups: bool
    """With `min_workers`: the loss of any worker."""
    expendable: tuple[str, ...]
    """Roles that may lose ranks without `min_workers`. The reporter may not be lost."""


def survivals() -> Iterator[Survival]:
    for name, kind in STRATEGIES.items():
        yield Survival(name, kind.in_step and can_regroup(kind()), tuple(kind.expendable))


def survival_rows() -> list[str]:
    """Return the rows of the table in docs/failures.md."""
    return [_row(each) for each in survivals()]


def _row(each: Survival) -> str:
    regroups = "continues without any worker" if each.regroups else "refused"
    roles = " or ".join(each.expendable)
    alone = f"continues while it has enough {roles}s and the reporter" if roles else "ends"
    return f"| `{each.name}` | {regroups} | {alone} |"


def check_elastic(task: Task, strategy: Strategy, min_workers: int | None, checkpoint: object) -> None:
    """Raise an error if a run with `min_workers` is not possible."""
    if min_workers is None:
        return
    if not can_regroup(strategy):
        can = ", ".join(each.name for each in survivals() if each.regroups)
        alone = ", ".join(each.name for each in survivals() if each.expendable)
        remedy = f"use {can}; omit min_workers for {alone}, which continue without lost workers by themselves"
        bound = f"must not be given with {describe(strategy)}, which cannot repeat a step with fewer workers"
        raise ConfigurationError("min_workers", bound, min_workers, remedy)
    excluded = {
        "checkpoint": checkpoint,
        "ema": task.ema,
        "loaders": task.loaders or None,
        "sync_batch_norm": task.sync_batch_norm or None,
        "precision": None if task.precision == "fp32" else task.precision,
    }
    for argument, value in excluded.items():
        if value is not None:
            remedy = "omit one of the two"
            raise ConfigurationError("min_workers", f"excludes {argument}", min_workers, remedy)
