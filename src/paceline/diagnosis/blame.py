"""Who is to blame for the waiting, however long the chain from the one who waits.

Where rank 1 waits for a server, the server for rank 3, and rank 3 computes, both waits are rank 3's doing.
`trace.waits` charges a rank with those that waited for it directly; here every second of waiting is charged to who is
at the chain's end. Where that one evaluates, nobody is to blame; where a chain is a circle, or its end communicates,
the links are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.trace.spans import Kind, SpanArray, Spans
from paceline.trace.timeline import NOTHING, PARTS, WAITING, sweep

__all__ = ["Blame", "find_blame"]

_MOST_CELLS = 20_000
"""Into so many pieces a run is cut at the most. Each is taken for what happens at one moment of it."""
_FEWEST_CELLS = 500
_MOST_STATES = 4_000_000
"""Of all ranks in all pieces, so that a run of many ranks needs no more memory."""
_GOLDEN = 0.6180339887498949

_EVALUATING = PARTS.index((Kind.EVALUATE,))
_COMMUNICATING = PARTS.index((Kind.RECEIVE, Kind.SEND))


@dataclass(frozen=True, slots=True)
class Blame:
    """Seconds that workers did nothing, evaluation left out, and whose doing they are."""

    idle_s: float
    """Summed over the workers: waiting, and time in no span."""
    ranks: dict[int, float] = field(default_factory=dict)
    """Of these, what each rank caused by being busy with its own work."""
    links_s: float = 0.0
    """Of these, what messages under way caused."""
    time_s: float = 0.0
    """All of the workers' seconds, without those in which they evaluate, cut the model, or wait for one who does."""

    @property
    def worst(self) -> int | None:
        """The rank that caused the most."""
        return max(self.ranks, key=lambda rank: self.ranks[rank], default=None)

    def share(self, rank: int) -> float:
        """The part of the idle time that a rank caused."""
        return self.ranks.get(rank, 0.0) / self.idle_s if self.idle_s else 0.0


def find_blame(spans: Sequence[Spans], seconds: float) -> Blame:
    """Charge the idle seconds of all ranks but servers."""
    if not spans or not seconds:
        return Blame(0.0)
    moments, lengths = _cells(spans, seconds)
    place = {each.rank: number for number, each in enumerate(spans)}
    parts = np.stack([_parts(each.array, seconds, moments) for each in spans])
    awaited = np.stack([_awaited(each, moments, place) for each in spans])
    awaited = np.where(parts == WAITING, awaited, np.arange(len(spans))[:, None])
    ends = _ends_of_chains(awaited)
    doing = np.take_along_axis(parts, ends, axis=0)
    worker = np.array([each.role != "server" for each in spans])[:, None]
    counted = worker & (doing != _EVALUATING)
    idle = counted & ((parts == WAITING) | (parts == NOTHING))
    waits = idle & (parts == WAITING)
    links = waits & ((doing == _COMMUNICATING) | (doing == WAITING))
    charged = np.bincount(
        ends[waits & ~links], weights=_spread(lengths, waits & ~links), minlength=len(spans)
    )
    ranks = {each.rank: float(s) for each, s in zip(spans, charged, strict=True) if s > 0}
    idle_s, links_s, time_s = (float(_spread(lengths, mask).sum()) for mask in (idle, links, counted))
    return Blame(idle_s, ranks, links_s, time_s)


def _cells(spans: Sequence[Spans], seconds: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Moments of the run, and how many seconds each stands for."""
    most = min(_MOST_CELLS, max(_FEWEST_CELLS, _MOST_STATES // len(spans)))
    if 2 * sum(len(each) for each in spans) > most:
        # Not in the middle of each piece: where all steps are equal, that would hit only a few phases of a step.
        numbers = np.arange(most)
        return (numbers + (numbers + 0.5) * _GOLDEN % 1) * (seconds / most), np.full(most, seconds / most)
    times = [each.array[name] for each in spans for name in ("start_s", "end_s")]
    edges = np.unique(np.clip(np.concatenate([[0.0, seconds], *times]), 0.0, seconds))
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def _parts(array: SpanArray, seconds: float, moments: NDArray[np.float64]) -> NDArray[np.intp]:
    timeline = sweep(array, seconds)
    return timeline.parts[np.searchsorted(timeline.edges, moments, side="right") - 1]


def _awaited(spans: Spans, moments: NDArray[np.float64], place: dict[int, int]) -> NDArray[np.intp]:
    """For whom a rank waits at each moment: itself where it does not say. Of several, the wait that ends last."""
    found = np.full(len(moments), place[spans.rank], dtype=np.intp)
    waits = spans.of(Kind.WAIT)
    waits = waits[np.argsort(waits["end_s"], kind="stable")]
    firsts, lasts = np.searchsorted(moments, waits["start_s"]), np.searchsorted(moments, waits["end_s"])
    for first, last, peer in zip(firsts.tolist(), lasts.tolist(), waits["peer"].tolist(), strict=True):
        if peer in place:
            found[first:last] = place[peer]
    return found


def _ends_of_chains(awaited: NDArray[np.intp]) -> NDArray[np.intp]:
    """Whom each rank waits for in the end. Where the chain is a circle, one of those in it."""
    ends = awaited
    for _ in range(math.ceil(math.log2(max(2, len(awaited)))) + 1):
        ends = np.take_along_axis(ends, ends, axis=0)
    return ends


def _spread(lengths: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The length of each cell of the mask."""
    return np.broadcast_to(lengths, mask.shape)[mask]
