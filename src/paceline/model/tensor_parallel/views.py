"""Position of a split dimension after a view that splits or merges dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from paceline.model.tensor_parallel.spec import Split


class Refine(Exception):  # noqa: N818  (no error: the walk is repeated with these blocks and units)
    """The columns must be split in another way: in more blocks, or in larger units."""

    def __init__(self, origins: frozenset[str], *, blocks: int = 1, unit: int = 1) -> None:
        """`blocks` and `unit` refer to columns of the weights named in `origins`."""
        self.origins = origins
        self.blocks = blocks
        self.unit = unit


def viewed(split: Split, before: Sequence[int], after: Sequence[int]) -> Split | None:
    """Return the split after a view from one shape to another. None if the split is then not in a single dimension.

    Raise `Refine` if whole units, such as heads, are needed.
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
    """Return the split after the view. `inner` and `behind` are elements per index of the dimension, before and after
    it.
    """
    if size % blocks or size // blocks * behind != split.length * inner:
        return None
    if split.unit * inner % behind:
        needed = math.lcm(split.unit, behind // math.gcd(behind, inner))
        raise Refine(split.origins, unit=int(needed * split.scale))
    unit, scale = split.unit * inner // behind, split.scale * Fraction(behind, inner)
    return replace(split, dim=dim, length=size // blocks, blocks=blocks, unit=unit, scale=scale)


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """Return the shortest runs of dimensions with equal numbers of elements before and after."""
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
