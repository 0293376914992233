"""The segments of a model that several ranks share: each keeps a part of every one of them.

The parameters of a segment are all there between `gather` and `release`, once the other ranks' parts have been written
into what `gather` gives. Its gradient is whole when its backward pass is done: `gradient` gives it, to be summed over
all ranks, and `keep` takes this rank's part of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Shards"]


class Shards(Protocol):
    """What ranks hold of each other's segments."""

    def used_by(self, segment: int) -> Sequence[int]:
        """The segments whose parameters one uses: its own, and that of a tied parameter which belongs to another."""
        ...

    def parts(self, segment: int) -> Sequence[slice]:
        """Each rank's part of a segment's parameters. Nearly equal, unless the optimizer needs whole layers."""
        ...

    def gather(self, segment: int) -> Tensor:
        """Memory for all parameters of a segment, flat, with this rank's part in its place."""
        ...

    def ready(self, segment: int) -> None:
        """The other ranks' parts have been written."""
        ...

    def release(self, segment: int) -> None:
        """Give up the memory of what other ranks hold, if this rank sheds it."""
        ...

    def gradient(self, segment: int, into: Tensor | None = None) -> Tensor:
        """The gradient of all parameters of a segment, of what this rank has computed since it was last asked for.

        It is finite, and is written into the memory given, or into new memory: it is handed over, once.
        """
        ...

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        """What was computed here for whole parameters since `gradient` was last asked for, to be changed in place. What
        has none is left out."""
        ...

    def keep(self, segment: int, own: Tensor) -> None:
        """Add this rank's part of the gradient, summed over all ranks, to `ctx.model.gradient`."""
        ...
