"""The values that cross a cut of the model, from one segment to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class BoundaryValues(NamedTuple):
    """Outputs of a segment for one micro-batch, in an order that is the same on both sides."""

    tensors: tuple[Tensor, ...] = ()
    wanted: tuple[bool, ...] = ()
    """Whether each tensor needs a gradient sent back."""
    chance: Tensor | None = None
    """State of torch's random generator; None if no random numbers were drawn. The next segment continues from it."""
