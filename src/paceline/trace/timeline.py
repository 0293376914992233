"""The time of one rank. Every instant counts once.

Spans may overlap: two receives at a time, or a gradient that is computed while buckets of other ranks arrive. Each
moment counts for the first of `PARTS` that is active.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.trace.spans import COMPUTING, Kind, SpanArray

Floats = NDArray[np.float64]

PARTS: tuple[tuple[Kind, ...], ...] = (
    COMPUTING,
    (Kind.UPDATE,),
    (Kind.CANCELLED,),
    (Kind.EVALUATE,),
    (Kind.RECEIVE, Kind.SEND),
    (Kind.SLEEP,),
    (Kind.WAIT,),
)
WAITING = PARTS.index((Kind.WAIT,))
NOTHING = len(PARTS)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Between `edges[i]` and `edges[i + 1]` the rank does `parts[i]`, an index of `PARTS` or `NOTHING`."""

    edges: Floats
    parts: NDArray[np.intp]

    def seconds(self) -> Floats:
        """Return the seconds of each of `PARTS`, and last the idle seconds. They sum to the run's seconds."""
        weighted = np.bincount(self.parts, weights=np.diff(self.edges), minlength=NOTHING + 1)
        return weighted.astype(np.float64)

    def waiting(self) -> tuple[Floats, Floats]:
        """Return the starts and ends of all waits. Waits hidden by computation do not count."""
        mask = np.concatenate([[False], self.parts == WAITING, [False]])
        changes = np.flatnonzero(mask[1:] != mask[:-1])
        return self.edges[changes[::2]], self.edges[changes[1::2]]


def sweep(array: SpanArray, seconds: float) -> Timeline:
    """Return the timeline of a rank from 0 to `seconds`. Spans outside do not count."""
    starts = np.clip(array["start_s"], 0, seconds)
    ends = np.clip(array["end_s"], 0, seconds)
    edges, places = np.unique(np.concatenate([[0.0, seconds], starts, ends]), return_inverse=True)
    opens, closes = places[2 : 2 + len(array)], places[2 + len(array) :]
    parts = np.full(len(edges) - 1, NOTHING, dtype=np.intp)
    for part in reversed(range(len(PARTS))):  # the first part has priority, so it is written last
        mine = np.isin(array["kind"], PARTS[part])
        parts[_under_way(opens[mine], closes[mine], len(edges))] = part
    return Timeline(edges, parts)


def _under_way(opens: NDArray[np.intp], closes: NDArray[np.intp], edges: int) -> NDArray[np.bool_]:
    """Return, for each interval between edges, whether at least one span is open."""
    change = np.bincount(opens, minlength=edges) - np.bincount(closes, minlength=edges)
    return np.cumsum(change)[:-1] > 0
