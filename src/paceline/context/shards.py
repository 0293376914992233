"""The segments of a model that several ranks share, in units: of each unit every rank keeps a part.

A unit is the parameters that one segment alone uses, and has its number; or those that the same several segments use.
Its parameters are all there between `gather` and `release`, once the other ranks' parts have been written into what
`gather` gives. Its gradient is whole when the backward pass of the first of its segments is done: `gradient` gives it,
to be summed over all ranks, and `keep` takes this rank's part of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Shards"]


class Shards(Protocol):
    """What ranks hold of each other's segments."""

    @property
    def units(self) -> Sequence[int]:
        """All that there are, in the order in which they lie in `ctx.model.parameters` and `gradient`."""
        ...

    def used_by(self, segment: int) -> Sequence[int]:
        """The units whose parameters a segment uses."""
        ...

    def completed_by(self, segment: int) -> Sequence[int]:
        """The units whose gradient is whole when the backward pass of this segment is done."""
        ...

    def parts(self, unit: int) -> Sequence[slice]:
        """Each rank's part of a unit's parameters. Nearly equal, unless the optimizer needs whole layers."""
        ...

    def gather(self, unit: int) -> Tensor:
        """Memory for all parameters of a unit, flat, with this rank's part in its place."""
        ...

    def ready(self, unit: int) -> None:
        """The other ranks' parts have been written."""
        ...

    def release(self, unit: int) -> None:
        """Give up the memory of what other ranks hold, if this rank sheds it."""
        ...

    def gradient(self, unit: int, into: Tensor | None = None) -> Tensor:
        """The gradient of all parameters of a unit, of what this rank has computed since it was last asked for.

        It is finite, and is written into the memory given, or into new memory: it is handed over, once.
        """
        ...

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        """What was computed here for whole parameters since `gradient` was last asked for, to be changed in place. What
        has none is left out."""
        ...

    def space(self, unit: int) -> Tensor | None:
        """Where this rank's part of the sum belongs, to be written there at once; None: something is there already."""
        ...

    def keep(self, unit: int, own: Tensor) -> None:
        """Add this rank's part of the gradient, summed over all ranks, to `ctx.model.gradient`."""
        ...
