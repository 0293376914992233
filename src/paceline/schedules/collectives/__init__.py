"""Collective schedules as pure data: what each rank of a group sends, receives and combines, round by round.

`COLLECTIVES[goal][algorithm](rank, size)` returns one rank's schedule. Goals with a root take `root=`, and the
hierarchical all-reduce takes `hosts=`. `group_plan` returns the whole group's schedule as arrays, for the timer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from paceline.errors import UnknownNameError
from paceline.schedules.collectives import (
    all_gather,
    all_to_all,
    all_to_all_reduce,
    barrier,
    broadcast,
    gather,
    halving_doubling,
    hierarchical,
    naive_ring,
    recursive_doubling,
    reduce,
    reduce_broadcast,
    reduce_scatter,
    ring,
    scatter,
    tree,
)
from paceline.schedules.collectives.plan import GroupPlan, plan_of_schedules
from paceline.schedules.collectives.steps import Schedule

__all__ = ["ALL_REDUCE", "COLLECTIVES", "Build", "group_plan"]

Build = Callable[..., Schedule]
"""(rank, size, …) -> Schedule"""

ALL_REDUCE: Mapping[str, Build] = MappingProxyType(
    {
        "all-to-all": all_to_all_reduce.schedule,
        "halving-doubling": halving_doubling.schedule,
        "hierarchical": hierarchical.schedule,
        "naive-ring": naive_ring.schedule,
        "recursive-doubling": recursive_doubling.schedule,
        "reduce-broadcast": reduce_broadcast.schedule,
        "ring": ring.schedule,
        "tree": tree.schedule,
    }
)

COLLECTIVES: Mapping[str, Mapping[str, Build]] = MappingProxyType(
    {
        "all-gather": {"ring": all_gather.schedule},
        "all-reduce": ALL_REDUCE,
        "all-to-all": {"pairwise": all_to_all.schedule},
        "barrier": {"dissemination": barrier.schedule},
        "broadcast": {"flat": broadcast.flat, "tree": broadcast.tree},
        "gather": {"flat": gather.schedule},
        "reduce": {"flat": reduce.flat, "tree": reduce.tree},
        "reduce-scatter": {"ring": reduce_scatter.schedule},
        "scatter": {"flat": scatter.schedule},
    }
)

_PLANS: Mapping[tuple[str, str], Callable[..., GroupPlan]] = {
    ("all-gather", "ring"): all_gather.plan,
    ("all-reduce", "hierarchical"): hierarchical.plan,
    ("all-reduce", "ring"): ring.plan,
    ("all-to-all", "pairwise"): all_to_all.plan,
    ("reduce-scatter", "ring"): reduce_scatter.plan,
}
"""Algorithms that are planned without building the schedule of each rank."""


def group_plan(goal: str, algorithm: str, size: int, **options: Any) -> GroupPlan:
    """Return the schedule of a whole group, as arrays. Options (`root`, `hosts`) are as for one rank."""
    if goal not in COLLECTIVES:
        raise UnknownNameError("goal", goal, COLLECTIVES)
    if algorithm not in COLLECTIVES[goal]:
        raise UnknownNameError("algorithm", algorithm, COLLECTIVES[goal])
    if plan := _PLANS.get((goal, algorithm)):
        return plan(size, **options)
    build = COLLECTIVES[goal][algorithm]
    return plan_of_schedules([build(rank, size, **options) for rank in range(size)])
