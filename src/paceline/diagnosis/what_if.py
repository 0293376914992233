"""What a step would take if a rank computed as quickly as the others: the trace is replayed with that one change."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from paceline.diagnosis.activities import Activities, What, read_activities
from paceline.diagnosis.graph import build_graph
from paceline.diagnosis.replay import computations_per_s
from paceline.trace.spans import Spans

__all__ = ["beginning_s", "step_ratio"]

_MOST_SPANS = 20_000
"""A replay takes some 20 µs a span; the beginning of a long run stands for all of it."""
_FEWER = 0.8
"""A rank that ends so many of the others' computations is not waited for."""


def step_ratio(spans: Sequence[Spans], rank: int, pace: float) -> float | None:
    """What the seconds of a step would be multiplied with, if those of a rank's computations were by `pace`.

    None where the trace has too few computations to tell.
    """
    activities = read_activities(spans, beginning_s(spans))
    if not activities.servers and _goes_at_its_own_pace(activities, rank):
        return _own_pace_ratio(activities, rank, pace)
    graph = build_graph(activities)
    now, then = computations_per_s(graph, {}), computations_per_s(graph, {rank: pace})
    return now / then if now > 0 and then > 0 else None


def beginning_s(spans: Sequence[Spans]) -> float:
    """Until when one has to look to see enough of a run. Infinite: all of it is looked at."""
    starts_s = np.concatenate([np.empty(0), *(each.array["start_s"] for each in spans)])
    if len(starts_s) <= _MOST_SPANS:
        return np.inf
    return float(np.partition(starts_s, _MOST_SPANS)[_MOST_SPANS])


def _goes_at_its_own_pace(activities: Activities, rank: int) -> bool:
    counts = np.bincount(activities.rank[activities.where(What.COMPUTE)], minlength=rank + 1)
    others = [int(count) for other, count in enumerate(counts) if other != rank and count]
    return bool(others) and bool(counts[rank] <= _FEWER * statistics.median(others))


def _own_pace_ratio(activities: Activities, rank: int, pace: float) -> float | None:
    """Where nobody waits for a rank, the others compute as before, and it computes as many more as it can.

    A replay would not tell: who talks to whom, and when, depends on the pace itself.
    """
    computed = activities.where(What.COMPUTE)
    mine = computed[activities.rank[computed] == rank]
    if len(mine) < 2:
        return None
    cycle_s = float(np.diff(activities.start_s[mine]).mean())
    saved_s = (1 - pace) * float(activities.work_s[mine].mean())
    now = len(computed)
    return now / (now + len(mine) * (cycle_s / (cycle_s - saved_s) - 1))
