"""The causes of waiting, through chains of waiting ranks of any length.

If rank 1 waits for a server, the server for rank 3, and rank 3 computes, rank 3 causes both waits. `trace.waits`
charges a rank with direct waits only. Here every second of waiting is charged to the rank at the end of the chain. If
that rank evaluates, no rank is charged. The links are charged if the awaited message has been sent, if a chain is a
cycle, or if its last rank communicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.trace.spans import NO_MESSAGE, Kind, SpanArray, Spans
from paceline.trace.timeline import NOTHING, PARTS, WAITING, sweep

_MOST_CELLS = 20_000
"""Maximum number of intervals that a run is cut into. Each is represented by one moment."""
_FEWEST_CELLS = 500
_MOST_STATES = 4_000_000
"""Maximum number of ranks times intervals, to limit memory in runs with many ranks."""
_GOLDEN = 0.6180339887498949

_EVALUATING = PARTS.index((Kind.EVALUATE,))
_COMMUNICATING = PARTS.index((Kind.RECEIVE, Kind.SEND))


@dataclass(frozen=True, slots=True)
class Blame:
    """Idle seconds of the workers and the causes of this idle time. Evaluation does not count."""

    idle_s: float
    """Sum over the workers: waiting, and time in no span."""
    ranks: dict[int, float] = field(default_factory=dict)
    """Idle seconds caused by each rank while it was busy with its own work."""
    links_s: float = 0.0
    """Idle seconds caused by messages in flight."""
    pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    """The same by waiting worker and cause: `{(worker, cause): seconds}`."""
    time_s: float = 0.0
    """Total seconds of the workers, without evaluation, without cutting the model, and without waits for ranks that
    do so."""

    @property
    def worst(self) -> int | None:
        """The rank that caused the most; None if there is none."""
        return max(self.ranks, key=lambda rank: self.ranks[rank], default=None)

    def share(self, rank: int) -> float:
        """Return the fraction of the idle time that a rank caused."""
        return self.ranks.get(rank, 0.0) / self.idle_s if self.idle_s else 0.0


def find_blame(spans: Sequence[Spans], seconds: float) -> Blame:
    """Charge the idle seconds of all ranks except servers."""
    if not spans or not seconds:
        return Blame(0.0)
    moments, lengths = _cells(spans, seconds)
    place = {each.rank: number for number, each in enumerate(spans)}
    parts = np.stack([_parts(each.array, seconds, moments) for each in spans])
    sends = np.concatenate([each.of(Kind.SEND) for each in spans])
    sends = sends[np.argsort(sends["message"])]
    awaited = np.stack([_awaited(each, moments, place, sends) for each in spans])
    awaited = np.where(parts == WAITING, awaited, np.arange(len(spans))[:, None])
    ends = _ends_of_chains(awaited)
    doing = np.take_along_axis(parts, ends, axis=0)
    worker = np.array([each.role != "server" for each in spans])[:, None]
    counted = worker & (doing != _EVALUATING)
    idle = counted & ((parts == WAITING) | (parts == NOTHING))
    waits = idle & (parts == WAITING)
    links = waits & ((doing == _COMMUNICATING) | (doing == WAITING))
    pairs = _by_pair(spans, ends, lengths, waits & ~links)
    ranks: dict[int, float] = {}
    for (_, cause), seconds_of_pair in pairs.items():
        ranks[cause] = ranks.get(cause, 0.0) + seconds_of_pair
    idle_s, links_s, time_s = (float(_spread(lengths, mask).sum()) for mask in (idle, links, counted))
    return Blame(idle_s, dict(sorted(ranks.items())), links_s, pairs, time_s)


def _by_pair(
    spans: Sequence[Spans], ends: NDArray[np.intp], lengths: NDArray[np.float64], mask: NDArray[np.bool_]
) -> dict[tuple[int, int], float]:
    """Return the seconds in the mask by the rank of the row and the rank at the end of its chain."""
    count = len(spans)
    keys, place = np.unique(np.nonzero(mask)[0] * count + ends[mask], return_inverse=True)
    seconds = np.bincount(place, weights=_spread(lengths, mask), minlength=len(keys)).tolist()
    named = [(spans[key // count].rank, spans[key % count].rank) for key in keys.tolist()]
    return {pair: each_s for pair, each_s in zip(named, seconds, strict=True) if each_s > 0}


def _cells(spans: Sequence[Spans], seconds: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return moments of the run, and the seconds that each represents."""
    most = min(_MOST_CELLS, max(_FEWEST_CELLS, _MOST_STATES // len(spans)))
    if 2 * sum(len(each) for each in spans) > most:
        # Not the middle of each interval, because with equal steps this would sample only a few phases of a step.
        numbers = np.arange(most)
        return (numbers + (numbers + 0.5) * _GOLDEN % 1) * (seconds / most), np.full(most, seconds / most)
    times = [each.array[name] for each in spans for name in ("start_s", "end_s")]
    edges = np.unique(np.clip(np.concatenate([[0.0, seconds], *times]), 0.0, seconds))
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def _parts(array: SpanArray, seconds: float, moments: NDArray[np.float64]) -> NDArray[np.intp]:
    timeline = sweep(array, seconds)
    # If two edges differ in the last bit only, the middle may be equal to the later edge, which may be the end of
    # the run.
    place = np.searchsorted(timeline.edges, moments, side="right") - 1
    return timeline.parts[np.minimum(place, len(timeline.parts) - 1)]


def _awaited(
    spans: Spans, moments: NDArray[np.float64], place: dict[int, int], sends: SpanArray
) -> NDArray[np.intp]:
    """Return the rank awaited at each moment. If there are several waits, use the one that ends last.
    A rank that waits for no rank is its own entry: the awaited rank is unknown, or the message has already been
    sent. `sends` are sorted by id.
    """
    found = np.full(len(moments), place[spans.rank], dtype=np.intp)
    waits = spans.of(Kind.WAIT)
    waits = waits[np.argsort(waits["end_s"], kind="stable")]
    times = (waits["start_s"], _sent_s(waits, sends), waits["end_s"])
    bounds = (np.searchsorted(moments, each_s).tolist() for each_s in times)
    for first, sent, last, peer in zip(*bounds, waits["peer"].tolist(), strict=True):
        if peer in place:
            found[first:last] = place[spans.rank]
            found[first:sent] = place[peer]
    return found


def _sent_s(waits: SpanArray, sends: SpanArray) -> NDArray[np.float64]:
    """Return the time at which the message of each wait was sent, at most the end of the wait.

    The end if there is no message.
    """
    if not len(sends):
        return np.asarray(waits["end_s"])
    nearest = sends[np.minimum(np.searchsorted(sends["message"], waits["message"]), len(sends) - 1)]
    known = (nearest["message"] == waits["message"]) & (waits["message"] != NO_MESSAGE)
    return np.where(known, np.minimum(nearest["start_s"], waits["end_s"]), waits["end_s"])


def _ends_of_chains(awaited: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rank at the end of each rank's chain of waits; in a cycle, one of its ranks."""
    ends = awaited
    for _ in range(math.ceil(math.log2(max(2, len(awaited)))) + 1):
        ends = np.take_along_axis(ends, ends, axis=0)
    return ends


def _spread(lengths: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the length of each cell in the mask."""
    return np.broadcast_to(lengths, mask.shape)[mask]
