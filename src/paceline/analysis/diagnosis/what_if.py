"""Step time if a rank computed as fast as the others: the trace is replayed with that one change."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.analysis.diagnosis.activities import Activities, What, read_activities
from paceline.analysis.diagnosis.graph import build_graph
from paceline.analysis.diagnosis.messages import LinkChange
from paceline.analysis.diagnosis.replay import computations_per_s
from paceline.trace.spans import Spans

_MOST_SPANS = 20_000
"""Maximum number of spans in a replay, which takes about 20 µs per span. A long run is cut to its beginning."""
_FEWER = 0.8
"""Maximum fraction of the others' computations that a rank completes if no rank waits for it."""


def step_ratio(spans: Sequence[Spans], rank: int, pace: float) -> float | None:
    """Return the factor on the step time if the computations of `rank` took `pace` times as long.

    None if the trace has too few computations.
    """
    activities = read_activities(spans, beginning_s(spans))
    if not activities.servers and _goes_at_its_own_pace(activities, rank):
        return _own_pace_ratio(activities, rank, pace)
    graph = build_graph(activities)
    now, then = computations_per_s(graph, {}), computations_per_s(graph, {rank: pace})
    return now / then if now > 0 and then > 0 else None


def relinked_ratio(spans: Sequence[Spans], change: LinkChange, pace: Mapping[int, float]) -> float | None:
    """Return the factor on the step time with other links, and with computations that take `pace` times as long.

    None if the trace has too few computations.
    """
    activities = read_activities(spans, beginning_s(spans))
    now = computations_per_s(build_graph(activities), {})
    then = computations_per_s(build_graph(activities, change), pace)
    return now / then if now > 0 and then > 0 else None


def beginning_s(spans: Sequence[Spans]) -> float:
    """Return the end of the part of a run that is analysed; infinite for the whole run."""
    starts_s = np.concatenate([np.empty(0), *(each.array["start_s"] for each in spans)])
    if len(starts_s) <= _MOST_SPANS:
        return np.inf
    return float(np.partition(starts_s, _MOST_SPANS)[_MOST_SPANS])


def _goes_at_its_own_pace(activities: Activities, rank: int) -> bool:
    counts = np.bincount(activities.rank[activities.where(What.COMPUTE)], minlength=rank + 1)
    others = [int(count) for other, count in enumerate(counts) if other != rank and count]
    return bool(others) and bool(counts[rank] <= _FEWER * statistics.median(others))


def _own_pace_ratio(activities: Activities, rank: int, pace: float) -> float | None:
    """Return the ratio if no rank waits for this one: the others compute as before, and it computes more.

    A replay cannot answer this: the pattern of communication depends on the speed itself.
    """
    computed = activities.where(What.COMPUTE)
    mine = computed[activities.rank[computed] == rank]
    if len(mine) < 2:
        return None
    cycle_s = float(np.diff(activities.start_s[mine]).mean())
    saved_s = (1 - pace) * float(activities.work_s[mine].mean())
    now = len(computed)
    return now / (now + len(mine) * (cycle_s / (cycle_s - saved_s) - 1))
