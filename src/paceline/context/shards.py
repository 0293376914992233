"""Segments of a model that are sharded among several ranks, in units. Every rank keeps one shard of each unit.

A unit is the set of parameters used by exactly one segment, and has the segment's number. Parameters that several
segments share form further units, one for each set of segments. The parameters of a unit are complete from the end
of `gather` to `release`. The gradient of a unit is complete after the backward pass of the first of its segments.
The ranks then reduce it in `gradient`, and each keeps its shard of the sum.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from paceline.context.batch import Batch
from paceline.context.passes import UnitEvent

if TYPE_CHECKING:
    from torch import Tensor


class ShardedUnit(NamedTuple):
    """Static description of a unit."""

    number: int
    users: tuple[int, ...]
    """Segments on this rank that use the parameters. The gradient is complete after the backward pass of the first."""
    parts: Sequence[slice]
    """Each rank's slice of the unit. Sizes are nearly equal, unless the optimizer needs whole layers."""


class Shards(Protocol):
    """Segments that several ranks hold together."""

    def passes(
        self, batch: Batch, parts: int | None = None, *, widest: int | None = None
    ) -> AbstractContextManager[AsyncIterator[UnitEvent]]:
        """Return a context manager for all passes of one step. Its value yields the exchanges between passes.

        The caller completes the exchanges of an event, and then requests the next one. The request runs the
        computation. Arguments are those of `Stages.batch`. Every unit is completed once in each micro-batch, also
        if the micro-batch is empty.
        """
        ...

    @property
    def units(self) -> Sequence[ShardedUnit]:
        """All units, in the order of `ctx.model.parameters` and `gradient`."""
        ...

    def gather(self, unit: int) -> AbstractContextManager[Tensor]:
        """Return a context manager for gathering a unit. Its value is memory for all parameters of the unit, flat.

        This rank's shard is filled in, and the caller writes those of the other ranks. At the end the unit is complete.
        """
        ...

    def release(self, unit: int) -> None:
        """In stage 3, free the parameters that other ranks own."""
        ...

    def gradient(
        self, unit: int, into: Tensor | None = None
    ) -> AbstractContextManager[tuple[Tensor, Tensor]]:
        """Return a context manager for reducing the gradient of a unit. Its value is a pair of tensors.

        The first is the gradient of all parameters of the unit, as computed by this rank since the last call. It is
        finite, and is written into `into` or into new memory. The second is memory for this rank's shard of the sum
        over all ranks, which the caller writes. It may be a part of the first. At the end it is added to
        `ctx.model.gradient`.
        """
        ...

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        """Return the gradients computed here for whole parameters since the last `gradient`, to be changed in place.

        Parameters without a gradient are left out.
        """
        ...
