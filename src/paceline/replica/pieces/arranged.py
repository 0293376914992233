"""How values of which ranks have parts lie while they go over a cut: the parted dimension first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from paceline.context.segment import Joining, Together
from paceline.errors import ConfigurationError

__all__ = ["PARTS", "arrived", "length_after", "of_wanted", "sent", "spread"]

PARTS = ("scatter", "take", "gather")
"""What gives a value of another size."""


def sent(values: Sequence[Tensor], together: Iterable[Together], size: int) -> list[Tensor]:
    """Values before ranks talk."""
    made = list(values)
    for each in together:
        if each.how in PARTS:
            value = made[each.place]
            _check(value.shape[each.dim] * (size if each.how == "gather" else 1), each)
            made[each.place] = value.movedim(each.dim, 0).contiguous()
    return made


def _check(length: int, together: Together) -> None:
    if length != together.length:
        bound = (
            f"must be sequences of {together.length} places, as the first batch has them, where sequence=true"
        )
        raise ConfigurationError("data", bound, length, "pad them, or leave sequence out")


def arrived(values: Sequence[Tensor], together: Iterable[Together]) -> list[Tensor]:
    """Values after they have, as the model knows them."""
    made = list(values)
    for each in together:
        if each.how in PARTS:
            made[each.place] = made[each.place].movedim(0, each.dim).contiguous()
    return made


def of_wanted(together: Iterable[Together], wanted: Sequence[bool]) -> list[Together]:
    """The same of gradients, of which there are only those that are wanted."""
    return [each._replace(place=sum(wanted[: each.place])) for each in together if wanted[each.place]]


def length_after(length: int, how: Joining, size: int) -> int:
    """Of a value's first dimension, or of all of it, when ranks have talked."""
    if how == "gather":
        return length * size
    return length // size if how in PARTS else length


def spread(values: Sequence[Tensor], together: Iterable[Together], size: int) -> list[Tensor]:
    """The shapes of values after ranks have talked."""
    made = list(values)
    for each in together:
        if each.how in PARTS:
            value = made[each.place]
            made[each.place] = value.new_empty((length_after(len(value), each.how, size), *value.shape[1:]))
    return made
