"""Waits of ranks for each other, and the ranks that caused them.

In a ring, a slow rank 3 makes rank 0 wait for it, rank 1 for rank 0, and rank 2 for rank 1, all equally long. Only rank
3 is the cause. It is the only rank that did not wait. So a rank is charged with the seconds that
others waited for it while it did not wait. If two ranks wait for each other, the link is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from paceline.trace.spans import Kind, Spans
from paceline.trace.timeline import Floats, Timeline

_SHORTEST_S = 1e-9  # shorter waits are rounding errors


class Straggler(NamedTuple):
    """A rank that others waited for."""

    rank: int
    seconds: float
    """Sum over all waiting ranks."""
    waits: int


class Waits(NamedTuple):
    """Result of `find_waits`."""

    pairs: dict[tuple[int, int], float]
    """Seconds that one rank waited for another: `{(waiter, awaited): seconds}`."""
    stragglers: list[Straggler]
    """Stragglers, worst first."""


class _Wait(NamedTuple):
    """All waits of one rank for another. They do not overlap."""

    waiter: int
    awaited: int
    starts: Floats
    ends: Floats


def find_waits(spans: Sequence[Spans], timelines: Mapping[int, Timeline]) -> Waits:
    """Find waits in the wait spans with a known peer. Waits hidden by computation or communication do not count."""
    stretches = {rank: timeline.waiting() for rank, timeline in timelines.items()}
    pairs: dict[tuple[int, int], float] = {}
    blame: dict[int, Straggler] = {}
    for wait in (wait for each in spans for wait in _waits_of(each, *stretches[each.rank])):
        seconds = wait.ends - wait.starts
        pairs[wait.waiter, wait.awaited] = float(seconds.sum())
        charged = seconds - _overlap(wait, *stretches.get(wait.awaited, (np.empty(0), np.empty(0))))
        _charge(blame, wait.awaited, charged[charged > _SHORTEST_S])
    return Waits(pairs, sorted(blame.values(), key=lambda straggler: (-straggler.seconds, straggler.rank)))


def _charge(blame: dict[int, Straggler], rank: int, seconds: Floats) -> None:
    if len(seconds):
        before = blame.get(rank, Straggler(rank, 0.0, 0))
        blame[rank] = Straggler(rank, before.seconds + float(seconds.sum()), before.waits + len(seconds))


def _waits_of(spans: Spans, begins: Floats, finishes: Floats) -> Iterator[_Wait]:
    """Yield the rank's wait spans, clipped to its waiting intervals, and grouped by the awaited rank."""
    array = spans.of(Kind.WAIT)
    array = array[array["peer"] >= 0]
    which, starts, ends = _cut(array["start_s"], array["end_s"], begins, finishes)
    order = np.lexsort((ends, starts, array["peer"][which]))
    peers = array["peer"][which][order]
    borders = np.flatnonzero(np.diff(peers)) + 1
    groups = zip(np.split(starts[order], borders), np.split(ends[order], borders), strict=True)
    for (group_starts, group_ends), first in zip(groups, [0, *borders], strict=True):
        if len(group_starts):
            yield _Wait(spans.rank, int(peers[first]), *_disjoint(group_starts, group_ends))


def _cut(starts: Floats, ends: Floats, begins: Floats, finishes: Floats) -> tuple[np.ndarray, Floats, Floats]:
    """Return the parts of the spans inside the sorted intervals, and the index of each part's span."""
    first = np.searchsorted(finishes, starts, side="right")
    count = np.maximum(np.searchsorted(begins, ends, side="left") - first, 0)
    which = np.repeat(np.arange(len(starts)), count)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    stretch = first[which] + nth
    return which, np.maximum(starts[which], begins[stretch]), np.minimum(ends[which], finishes[stretch])


def _disjoint(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """Clip each of the sorted spans to the part that no earlier span covers."""
    covered = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])
    starts = np.maximum(starts, covered)
    return starts, np.maximum(ends, starts)


def _overlap(wait: _Wait, begins: Floats, finishes: Floats) -> Floats:
    """Return the seconds of each wait inside the intervals."""
    if not len(begins):
        return np.zeros(len(wait.starts))
    edges = np.column_stack([begins, finishes]).ravel()
    inside = np.column_stack([np.zeros(len(begins)), finishes - begins]).ravel().cumsum()
    # `inside` is the total length of all intervals up to an edge, and linear between two edges.
    return np.asarray(np.interp(wait.ends, edges, inside) - np.interp(wait.starts, edges, inside))
