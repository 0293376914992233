"""How one tensor is split among the ranks of a tensor group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

from paceline.schedules.collectives.steps import chunk_bounds


@dataclass(frozen=True, slots=True)
class Split:
    """Split of a dimension. The dimension consists of `blocks` blocks of `length` elements. A rank has the same
    range of whole units in each block.

    A plain matrix has one block. Fused projections of queries, keys and values have three, and their units are heads.
    """

    dim: int
    length: int
    blocks: int = 1
    unit: int = 1
    sequence: bool = False
    """Whether the sequence is split instead of columns. Parameters are then whole, and equal on every rank."""
    origins: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the weights that the split columns belong to."""
    scale: Fraction = field(default=Fraction(1), compare=False)
    """Number of their columns for each element of the dimension."""

    @property
    def units(self) -> int:
        return self.length // self.unit

    def stretch(self, position: int, size: int) -> tuple[int, int]:
        """Return the start and the length of a rank's part of each block."""
        bounds = chunk_bounds(self.units, size)
        start, stop = bounds[position] * self.unit, bounds[position + 1] * self.unit
        return start, stop - start

    def moved(self, dim: int) -> Split:
        return replace(self, dim=dim)

    def views(self, tensor: Tensor, position: int, size: int) -> list[Tensor]:
        """Return a rank's part of a whole tensor: one view for each block."""
        start, count = self.stretch(position, size)
        places = (block * self.length + start for block in range(self.blocks))
        return [tensor.narrow(self.dim, place, count) for place in places]


def narrowed(value: Tensor, dim: int, length: int, start: int, count: int) -> Tensor:
    """Return a rank's part of a whole value, block by block."""
    if value.shape[dim] == length:
        return value.narrow(dim, start, count)
    parted: Tensor = value.unflatten(dim, (-1, length))  # type: ignore[no-untyped-call]
    return parted.narrow(dim + 1, start, count).flatten(dim, dim + 1)


def widened(value: Tensor, dim: int, blocks: int, length: int, start: int, count: int) -> Tensor:
    """Return a rank's part, padded with zeros to the whole size. The sum over all ranks is the whole value."""
    blocks = blocks if count == 0 else value.shape[dim] // count
    behind = [0, 0] * (value.dim() - dim - 1)
    parted: Tensor = value.unflatten(dim, (blocks, count))  # type: ignore[no-untyped-call]
    return torch.nn.functional.pad(parted, [*behind, start, length - start - count]).flatten(dim, dim + 1)


@dataclass(frozen=True, slots=True)
class Shares:
    """Assignment of parameters to the ranks of a tensor group."""

    size: int
    of: Mapping[str, Split | None]
    """Split of each parameter by name. None if the first rank has all of it and the others none. Parameters not listed
    are whole on every rank.
    """

    def holds(self, name: str, position: int) -> bool:
        return self.of.get(name, ...) is not None or position == 0

    def views(self, name: str, tensor: Tensor, position: int) -> list[Tensor]:
        """Return views of a rank's part of a whole parameter."""
        split = self.of.get(name)
        return [tensor] if split is None else split.views(tensor, position, self.size)

    def part(self, name: str, tensor: Tensor, position: int) -> Tensor:
        """Return a copy of a rank's part of a whole parameter."""
        split, views = self.of.get(name), self.views(name, tensor, position)
        return views[0].clone() if split is None else torch.cat(views, dim=split.dim)

    def write(self, name: str, tensor: Tensor, part: Tensor, position: int) -> None:
        """Copy a rank's part into a whole parameter."""
        split, views = self.of.get(name), self.views(name, tensor, position)
        parts: Sequence[Tensor] = [part]
        if split is not None:
            parts = torch.split(part, [view.shape[split.dim] for view in views], split.dim)
        for view, each in zip(views, parts, strict=True):
            view.copy_(each)

    def shape(self, name: str, shape: torch.Size, position: int) -> torch.Size:
        """Return the shape of a rank's part, given the shape of the whole parameter."""
        split = self.of.get(name)
        if split is None:
            return shape
        count = split.blocks * split.stretch(position, self.size)[1]
        return torch.Size([*shape[: split.dim], count, *shape[split.dim + 1 :]])
