"""Cuts within a stage whose segments are recomputed: those that need the least memory.

A stage stores the values at its cuts, and all activations of one segment while that segment is computed again. With
few segments, few values are stored, but many activations are recomputed at the same time. For a transformer, the
result is about one segment per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from paceline.model.cutting.parts import Part


def recomputed_places(parts: Sequence[Part]) -> list[int]:
    """Return the places to cut a stage at, each as the number of the part after it."""
    units = _units(parts)
    limit = max(_activations(parts[a:b]) for a, b in units)
    found = [_grouped(parts, units, limit)]
    while found[-1][1]:
        limit *= 2
        found.append(_grouped(parts, units, limit))
    return min(found)[1]


def _units(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Return the ranges of parts between which cuts are possible.

    Only one value crosses such a cut. With several values, gradients would be summed in another order, and the last
    bits would differ.
    """
    fits = [not part.obstacle and len(part.crossing) == 1 for part in parts[:-1]]
    return list(pairwise([0, *(place + 1 for place, does in enumerate(fits) if does), len(parts)]))


def _activations(parts: Sequence[Part]) -> float:
    """Estimate the bytes that parts store for the backward pass: their moved bytes, and the inputs of matrix
    products."""
    return sum(part.moved_bytes / 2 + part.crossing_bytes for part in parts)


def _grouped(
    parts: Sequence[Part], units: Sequence[tuple[int, int]], limit: float
) -> tuple[float, list[int]]:
    """Return the bytes of a stage with at most `limit` bytes of activations in each segment, and its cuts."""
    places, nbytes, largest = list[int](), 0.0, 0.0
    for start, stop in units:
        own = _activations(parts[start:stop])
        if nbytes and nbytes + own > limit:
            places.append(start)
            nbytes = 0.0
        nbytes += own
        largest = max(largest, nbytes)
    return largest + sum(parts[place - 1].crossing_bytes for place in places), places
