"""Parameters that ranks share, in units: of each a rank keeps a part, and all of it is there while it is needed.

The parameters that one segment alone uses are a unit. So are those that the same several segments use: it is cut alike
wherever some of these segments are held, so that ranks with different segments can sum their parts of its gradient.

What comes and goes stays the same tensor: its storage is emptied and filled again. So what autograd has kept of it (a
transposed weight, say) is right again when the parameters are back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.replica.layout import Layout

__all__ = ["Home", "Passing", "Unit", "homes_of", "laid_out", "units_of"]


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
class Home:
    """The parameters of one unit."""

    number: int
    """That of the segment which alone uses them; those that several use have numbers after the last segment's."""
    names: tuple[str, ...]
    users: tuple[int, ...]
    """The segments held here that use them. The first comes last in a backward pass: then the gradient is whole."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The parameters of a home, one after another."""

    home: Home
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


def homes_of(used: Sequence[Sequence[str]], held: Sequence[int], trained: Sequence[str]) -> list[Home]:
    """What is held of a model, given the parameters that each of its segments uses: one home for each held segment,
    then those of tied parameters."""
    users: dict[str, list[int]] = {}
    for number, names in enumerate(used):
        for name in dict.fromkeys(names):
            users.setdefault(name, []).append(number)
    groups: dict[tuple[int, ...], list[str]] = {(number,): [] for number in range(len(used))}
    for name, numbers in users.items():
        groups.setdefault(tuple(numbers), []).append(name)
    wanted, homes = set(trained), []
    for place, (segments, tied) in enumerate(groups.items()):
        here = tuple(number for number in segments if number in held)
        own = tuple(name for name in tied if name in wanted)
        if here and (own or len(segments) == 1):
            homes.append(Home(place, own, here))
    return homes


def units_of(layout: Layout, homes: Sequence[Home], ranks: int, *, evenly: bool) -> list[Unit]:
    """Units one after the other; `layout` is of the model, in any order.

    `evenly`: parts are cut anywhere. Otherwise they are whole parameters, and some ranks may have none.
    """
    units, start = [], 0
    for home in homes:
        own = layout.narrowed(home.names)
        shards = own.even_shards(ranks) if evenly else own.whole_shards(ranks)
        units.append(Unit(home, start, own, tuple(shards)))
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
