"""Where to cut: so that the slowest segment is quick, and few bytes go over the cuts.

A segment is worth its operations and, for each byte that it receives or sends, what a core multiplies meanwhile.
The cuts whose worst segment is worth least are found by dynamic programming; of equal ones, those with fewer bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from paceline.replica.pieces.parts import Part

__all__ = ["BYTE", "choose"]

BYTE = 10.0
"""Operations that a byte over a cut is worth: a link of a few gigabytes a second beside a core of some tens of
gigaflops."""

_MOST_PLACES = 160
"""Of a model with more places to cut at, as many are looked at, spread over it: the cheapest to cut of each stretch."""


def choose(parts: Sequence[Part], segments: int) -> list[int] | None:
    """The places of `segments` - 1 cuts, each before the part of that number. None: there are not so many."""
    places = _candidates(parts)
    if segments - 1 > len(places):
        return None
    sums = list(accumulate((part.operations for part in parts), initial=0.0))
    ends = [0, *places, len(parts)]
    crossing = [0.0, *(float(parts[place - 1].crossing_bytes) for place in places), 0.0]

    def worth(a: int, b: int) -> float:
        return sums[ends[b]] - sums[ends[a]] + BYTE * (crossing[a] + crossing[b])

    # best[b]: of cuts of which the last is at ends[b], the worst segment, the bytes, and the cut before.
    best: list[tuple[float, float, tuple[int, ...]]] = [
        (worth(0, b), crossing[b], (0,)) for b in range(len(ends))
    ]
    for count in range(2, segments + 1):
        best = [
            min(
                (
                    (max(best[a][0], worth(a, b)), best[a][1] + crossing[b], (*best[a][2], a))
                    for a in range(count - 1, b)
                ),
                default=(float("inf"), 0.0, ()),
            )
            for b in range(len(ends))
        ]
    return [ends[place] for place in best[-1][2][1:]]


def _candidates(parts: Sequence[Part]) -> list[int]:
    """The places where a cut is possible; of very many, the cheapest of each stretch."""
    places = [number + 1 for number, part in enumerate(parts[:-1]) if not part.obstacle]
    if len(places) <= _MOST_PLACES:
        return places
    stretch = -(-len(places) // _MOST_PLACES)
    groups = (places[start : start + stretch] for start in range(0, len(places), stretch))
    return [min(group, key=lambda place: parts[place - 1].crossing_bytes) for group in groups]
