"""Where a split dimension is after a view: among the dimensions that it was parted into, or merged with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from paceline.replica.pieces.tensor.spec import Split

__all__ = ["Refine", "viewed"]


class Refine(Exception):  # noqa: N818  (no error: what was found is followed anew with more knowledge)
    """The columns must be split otherwise: in more blocks, or in units of some columns."""

    def __init__(self, origins: frozenset[str], *, blocks: int = 1, unit: int = 1) -> None:
        """Both in columns of the weights of that name."""
        self.origins = origins
        self.blocks = blocks
        self.unit = unit


def viewed(split: Split, before: Sequence[int], after: Sequence[int]) -> Split | None:
    """The split after a view from one shape to another. None: it is in no dimension alone then.

    Raises `Refine` if whole units are needed, as heads are.
    """
    for olds, news in _groups(before, after):
        if split.dim in olds:
            return _within(split, [before[d] for d in olds], olds[0], [after[d] for d in news], news[0])
    return None


def _within(
    split: Split, olds: Sequence[int], first_old: int, news: Sequence[int], first_new: int
) -> Split | None:
    place = split.dim - first_old
    outer = math.prod(olds[:place]) * split.blocks
    inner = math.prod(olds[place + 1 :])
    reached = 1
    for number, size in enumerate(news):
        if reached * size > outer and outer % reached == 0:
            behind = math.prod(news[number + 1 :])
            return _parted(split, first_new + number, outer // reached, size, inner, behind)
        reached *= size
    return None


def _parted(split: Split, dim: int, blocks: int, size: int, inner: int, behind: int) -> Split | None:
    """With `inner` values for each of the dimension before the view, and `behind` for each after it."""
    if size % blocks or size // blocks * behind != split.length * inner:
        return None
    if split.unit * inner % behind:
        needed = math.lcm(split.unit, behind // math.gcd(behind, inner))
        raise Refine(split.origins, unit=int(needed * split.scale))
    unit, scale = split.unit * inner // behind, split.scale * Fraction(behind, inner)
    return replace(split, dim=dim, length=size // blocks, blocks=blocks, unit=unit, scale=scale)


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """The shortest runs of dimensions that have as many values before as after."""
    groups, i, j = [], 0, 0
    while i < len(before) and j < len(after):
        start_i, start_j, a, b = i, j, before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b and i < len(before):
                a, i = a * before[i], i + 1
            elif j < len(after):
                b, j = b * after[j], j + 1
            else:
                break
        groups.append((range(start_i, i), range(start_j, j)))
    return groups
