"""Memory layout of values that a tensor group scatters or gathers at a cut: the split dimension comes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from paceline.context.segment import GroupReduction, ReduceKind
from paceline.errors import ConfigurationError

PARTS = ("scatter", "take", "gather")
"""Kinds of reduction that change the size of a value."""


def sent(values: Sequence[Tensor], together: Iterable[GroupReduction], size: int) -> list[Tensor]:
    """Return the values in the layout in which the tensor group exchanges them."""
    made = list(values)
    for each in together:
        if each.how in PARTS:
            value = made[each.place]
            _check(value.shape[each.dim] * (size if each.how == "gather" else 1), each)
            made[each.place] = value.movedim(each.dim, 0).contiguous()
    return made


def _check(length: int, together: GroupReduction) -> None:
    if length != together.length:
        bound = f"must be sequences of length {together.length}, as in the first batch, if sequence=true"
        raise ConfigurationError("data", bound, length, "pad them, or leave sequence out")


def arrived(values: Sequence[Tensor], together: Iterable[GroupReduction]) -> list[Tensor]:
    """Convert exchanged values to the layout of the model."""
    made = list(values)
    for each in together:
        if each.how in PARTS:
            made[each.place] = made[each.place].movedim(0, each.dim).contiguous()
    return made


def of_wanted(together: Iterable[GroupReduction], wanted: Sequence[bool]) -> list[GroupReduction]:
    """Return the reductions of the gradients that are wanted, numbered among these."""
    return [each._replace(place=sum(wanted[: each.place])) for each in together if wanted[each.place]]


def length_after(length: int, how: ReduceKind, size: int) -> int:
    """Return the length of a value's first dimension, or of a flat value, after the reduction."""
    if how == "gather":
        return length * size
    return length // size if how in PARTS else length


def spread(values: Sequence[Tensor], together: Iterable[GroupReduction], size: int) -> list[Tensor]:
    """Return the shapes of values after the reductions."""
    made = list(values)
    for each in together:
        if each.how in PARTS:
            value = made[each.place]
            made[each.place] = value.new_empty((length_after(len(value), each.how, size), *value.shape[1:]))
    return made
