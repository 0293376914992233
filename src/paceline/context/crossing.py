"""What goes over a cut of the model, from one segment to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Crossing"]


class Crossing(NamedTuple):
    """The outputs of a segment for one micro-batch, in an order that both sides know."""

    tensors: tuple[Tensor, ...] = ()
    wanted: tuple[bool, ...] = ()
    """Of which of them a gradient comes back."""
    chance: Tensor | None = None
    """Where torch's random numbers stand, if any were drawn: the next segment goes on from there."""
