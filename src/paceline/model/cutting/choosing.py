"""Choice of cuts: minimize the cost of the slowest segment, then the bytes that cross the cuts.

The cost of a segment is its operations, plus `BYTE` operations for each byte that it receives or sends. Dynamic
programming finds the cuts with the lowest maximum cost. Among equal choices, it selects the cuts with the fewest
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from paceline.model.cutting.parts import Part

BYTE = 10.0
"""Operations per byte that crosses a cut. Assumes a link of a few gigabytes per second and a core of some tens of
gigaflops.
"""

_MOST_PLACES = 160
"""Maximum number of candidate cuts. A model with more candidates is divided into ranges, and the cheapest cut of
each range is considered.
"""


def choose(parts: Sequence[Part], segments: int) -> list[int] | None:
    """Return the `segments` - 1 cuts, each as the number of the part after it. None if there are too few places."""
    places = _candidates(parts)
    if segments - 1 > len(places):
        return None
    sums = list(accumulate((part.operations for part in parts), initial=0.0))
    ends = [0, *places, len(parts)]
    crossing = [0.0, *(float(parts[place - 1].crossing_bytes) for place in places), 0.0]

    def worth(a: int, b: int) -> float:
        return sums[ends[b]] - sums[ends[a]] + BYTE * (crossing[a] + crossing[b])

    # best[b], for cuts that end at ends[b]: the cost of the slowest segment, the bytes, and the previous cut.
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
    """Return the places where a cut is possible. If there are too many, return the cheapest of each range."""
    places = [number + 1 for number, part in enumerate(parts[:-1]) if not part.obstacle]
    if len(places) <= _MOST_PLACES:
        return places
    stretch = -(-len(places) // _MOST_PLACES)
    groups = (places[start : start + stretch] for start in range(0, len(places), stretch))
    return [min(group, key=lambda place: parts[place - 1].crossing_bytes) for group in groups]
