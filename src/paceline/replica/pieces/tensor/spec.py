"""How one tensor is split among the ranks of a tensor group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

from paceline.schedules.steps import chunk_bounds

__all__ = ["Shares", "Split", "narrowed", "widened"]


@dataclass(frozen=True, slots=True)
class Split:
    """A dimension is so many blocks of one length, of each of which a rank has the same stretch, of whole units.

    A plain matrix has one block; fused projections of queries, keys and values have three, and their units are heads.
    """

    dim: int
    length: int
    blocks: int = 1
    unit: int = 1
    sequence: bool = False
    """Whether it is of the sequence, and not of columns: all parameters are used for it, and each rank has the same."""
    origins: frozenset[str] = field(default=frozenset(), compare=False)
    """The weights whose columns it comes from."""
    scale: Fraction = field(default=Fraction(1), compare=False)
    """Columns of them for each value along the dimension."""

    @property
    def units(self) -> int:
        return self.length // self.unit

    def stretch(self, position: int, size: int) -> tuple[int, int]:
        """Where a rank's part of each block begins, and how long it is."""
        bounds = chunk_bounds(self.units, size)
        start, stop = bounds[position] * self.unit, bounds[position + 1] * self.unit
        return start, stop - start

    def moved(self, dim: int) -> Split:
        return replace(self, dim=dim)

    def views(self, tensor: Tensor, position: int, size: int) -> list[Tensor]:
        """A rank's part of a whole tensor: of each block the part, in place."""
        start, count = self.stretch(position, size)
        places = (block * self.length + start for block in range(self.blocks))
        return [tensor.narrow(self.dim, place, count) for place in places]


def narrowed(value: Tensor, dim: int, length: int, start: int, count: int) -> Tensor:
    """A rank's part of a whole value, block by block."""
    if value.shape[dim] == length:
        return value.narrow(dim, start, count)
    parted: Tensor = value.unflatten(dim, (-1, length))  # type: ignore[no-untyped-call]
    return parted.narrow(dim + 1, start, count).flatten(dim, dim + 1)


def widened(value: Tensor, dim: int, blocks: int, length: int, start: int, count: int) -> Tensor:
    """A rank's part where it belongs in the whole, and zeros elsewhere: the sum over all ranks is the whole."""
    blocks = blocks if count == 0 else value.shape[dim] // count
    behind = [0, 0] * (value.dim() - dim - 1)
    parted: Tensor = value.unflatten(dim, (blocks, count))  # type: ignore[no-untyped-call]
    return torch.nn.functional.pad(parted, [*behind, start, length - start - count]).flatten(dim, dim + 1)


@dataclass(frozen=True, slots=True)
class Shares:
    """Which rank of a tensor group has what of each parameter."""

    size: int
    of: Mapping[str, Split | None]
    """By name; None: the first rank has all of it, and the others nothing. Others are whole on every rank."""

    def holds(self, name: str, position: int) -> bool:
        return self.of.get(name, ...) is not None or position == 0

    def views(self, name: str, tensor: Tensor, position: int) -> list[Tensor]:
        """A rank's part of a whole parameter that it holds, in place."""
        split = self.of.get(name)
        return [tensor] if split is None else split.views(tensor, position, self.size)

    def part(self, name: str, tensor: Tensor, position: int) -> Tensor:
        """A copy of it."""
        split, views = self.of.get(name), self.views(name, tensor, position)
        return views[0].clone() if split is None else torch.cat(views, dim=split.dim)

    def write(self, name: str, tensor: Tensor, part: Tensor, position: int) -> None:
        """Put a rank's part into a whole parameter."""
        split, views = self.of.get(name), self.views(name, tensor, position)
        parts: Sequence[Tensor] = [part]
        if split is not None:
            parts = torch.split(part, [view.shape[split.dim] for view in views], split.dim)
        for view, each in zip(views, parts, strict=True):
            view.copy_(each)

    def shape(self, name: str, shape: torch.Size, position: int) -> torch.Size:
        """Of a rank's part of a parameter of that shape."""
        split = self.of.get(name)
        if split is None:
            return shape
        count = split.blocks * split.stretch(position, self.size)[1]
        return torch.Size([*shape[: split.dim], count, *shape[split.dim + 1 :]])
