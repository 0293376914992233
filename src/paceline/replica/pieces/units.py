"""The parameters of one segment as a unit that ranks share: each keeps a part, and all of it is there while needed.

What comes and goes stays the same tensor: its storage is emptied and filled again. So what autograd has kept of it (a
transposed weight, say) is right again when the parameters are back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.replica.layout import Layout

__all__ = ["Passing", "Unit", "homes_of", "laid_out", "units_of"]


class Passing:
    """A flat tensor whose memory comes and goes."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        self._nbytes = flat.untyped_storage().nbytes()

    @property
    def is_there(self) -> bool:
        return self.flat.is_meta or not self._nbytes or self.flat.untyped_storage().nbytes() > 0

    @property
    def nbytes(self) -> int:
        """Of what is there now."""
        return self._nbytes if self.is_there else 0

    def come(self) -> Tensor:
        """Have memory again; what is in it is not defined."""
        if not self.is_there:
            self.flat.untyped_storage().resize_(self._nbytes)
        return self.flat

    def go(self) -> None:
        storage = self.flat.untyped_storage()
        # What a user's code has shown to numpy cannot be resized any more: it stays.
        if not self.flat.is_meta and storage.resizable():
            storage.resize_(0)


@dataclass(frozen=True, slots=True)
class Unit:
    """The parameters of one segment, one after another."""

    start: int
    """Where it begins in the layout."""
    layout: Layout
    shards: tuple[slice, ...]
    """The part of each rank."""

    @property
    def length(self) -> int:
        return self.layout.length

    def own(self, rank: int) -> slice:
        """A rank's part, in the layout of all units."""
        shard = self.shards[rank]
        return slice(self.start + shard.start, self.start + shard.stop)


def homes_of(used: Sequence[Sequence[str]], trained: Sequence[str]) -> list[list[str]]:
    """The parameters of each unit, given those that each segment uses: each belongs to the first that uses it.

    That one comes last in a backward pass, when all others have added to its gradient.
    """
    seen: set[str] = set()
    wanted = set(trained)
    homes = []
    for names in used:
        own = [name for name in dict.fromkeys(names) if name in wanted and name not in seen]
        seen.update(own)
        homes.append(own)
    return homes


def units_of(layout: Layout, homes: Sequence[Sequence[str]], ranks: int, *, evenly: bool) -> list[Unit]:
    """Units one after the other; `layout` is of the model, in any order.

    `evenly`: parts are cut anywhere. Otherwise they are whole parameters, and some ranks may have none.
    """
    units, start = [], 0
    for names in homes:
        own = layout.narrowed(names)
        shards = own.even_shards(ranks) if evenly else own.whole_shards(ranks)
        units.append(Unit(start, own, tuple(shards)))
        start += own.length
    return units


def laid_out(units: Sequence[Unit], dtype: torch.dtype) -> Layout:
    """All units in one layout."""
    layouts = [unit.layout for unit in units]
    return Layout(
        tuple(name for each in layouts for name in each.names),
        tuple(shape for each in layouts for shape in each.shapes),
        (0, *(unit.start + offset for unit in units for offset in unit.layout.offsets[1:])),
        tuple(kind for each in layouts for kind in each.dtypes),
        dtype,
        {name: within for each in layouts for name, within in each.within.items()},
    )
