"""Sharded parameters, grouped into units. A rank stores one shard of each unit and gathers the rest when needed.

Parameters used by one segment only form a unit. Tied parameters used by the same set of segments form another unit.
Such a unit is sharded in the same way on every rank that holds one of these segments. So ranks with different segments
can sum their shards of its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.model.layout import Layout


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """The parameters of one unit."""

    number: int
    """Number of the only segment that uses them. Groups used by several segments are numbered after the last
    segment.
    """
    names: tuple[str, ...]
    users: tuple[int, ...]
    """Segments on this rank that use the parameters. The first of these is the last in a backward pass; after it the
    gradient is complete.
    """


@dataclass(frozen=True, slots=True)
class ShardUnit:
    """A parameter group in a flat layout, and its shards."""

    group: ParameterGroup
    start: int
    """Offset in the layout of all units."""
    layout: Layout
    shards: tuple[slice, ...]
    """The shard of each rank."""

    @property
    def length(self) -> int:
        return self.layout.length

    def own(self, rank: int) -> slice:
        """Return the shard of a rank, in the layout of all units."""
        shard = self.shards[rank]
        return slice(self.start + shard.start, self.start + shard.stop)


def parameter_groups(
    used: Sequence[Sequence[str]], held: Sequence[int], trained: Sequence[str]
) -> list[ParameterGroup]:
    """Return the parameter groups that this rank holds, given the parameters used by each segment.

    There is one group for each held segment, followed by the groups of tied parameters.
    """
    users: dict[str, list[int]] = {}
    for number, names in enumerate(used):
        for name in dict.fromkeys(names):
            users.setdefault(name, []).append(number)
    groups: dict[tuple[int, ...], list[str]] = {(number,): [] for number in range(len(used))}
    for name, numbers in users.items():
        groups.setdefault(tuple(numbers), []).append(name)
    wanted, held_groups = set(trained), []
    for place, (segments, tied) in enumerate(groups.items()):
        here = tuple(number for number in segments if number in held)
        own = tuple(name for name in tied if name in wanted)
        if here and (own or len(segments) == 1):
            held_groups.append(ParameterGroup(place, own, here))
    return held_groups


def units_of(
    layout: Layout, groups: Sequence[ParameterGroup], ranks: int, *, evenly: bool
) -> list[ShardUnit]:
    """Return the units in order. `layout` is the layout of the model, in any order.

    With `evenly`, shards may split a parameter. Otherwise shards are whole parameters, and a rank may have an empty
    shard.
    """
    units, start = [], 0
    for group in groups:
        own = layout.narrowed(group.names)
        shards = own.even_shards(ranks) if evenly else own.whole_shards(ranks)
        units.append(ShardUnit(group, start, own, tuple(shards)))
        start += own.length
    return units


def laid_out(units: Sequence[ShardUnit], dtype: torch.dtype) -> Layout:
    """Return one layout for all units."""
    layouts = [unit.layout for unit in units]
    return Layout(
        tuple(name for each in layouts for name in each.names),
        tuple(shape for each in layouts for shape in each.shapes),
        (0, *(unit.start + offset for unit in units for offset in unit.layout.offsets[1:])),
        tuple(kind for each in layouts for kind in each.dtypes),
        dtype,
        {name: within for each in layouts for name, within in each.within.items()},
    )
