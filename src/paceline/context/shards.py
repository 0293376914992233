"""Segments of a model that are sharded among several ranks, in units. Every rank keeps one shard of each unit.

A unit is the set of parameters used by exactly one segment, and has the segment's number. Parameters used by the same
several segments form another unit. The parameters of a unit are complete between `gather` and `release`, once the other
ranks' shards have been written into the tensor that `gather` returns. The gradient of a unit is complete after the
backward pass of the first of its segments. `gradient` then returns it, the caller reduces it over all ranks, and `keep`
stores this rank's shard of the sum.
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

    @property
    def in_step(self) -> bool:
        """Whether all ranks have the same events in the same order. Not if the control flow depends on the data."""
        ...

    def passes(
        self, batch: Batch, parts: int | None = None, *, widest: int | None = None
    ) -> AbstractContextManager[AsyncIterator[UnitEvent]]:
        """Return a context manager for all passes of one step. Its value yields what to exchange between them.

        The next event is requested after the exchanges of the last one. The rank computes until then. Arguments are
        those of `Stages.batch`. Every unit is completed once in each micro-batch, also if the micro-batch is empty.
        """
        ...

    @property
    def units(self) -> Sequence[ShardedUnit]:
        """All units, in the order of `ctx.model.parameters` and `gradient`."""
        ...

    def gather(self, unit: int) -> Tensor:
        """Allocate memory for all parameters of a unit, flat, and fill in this rank's shard."""
        ...

    def ready(self, unit: int) -> None:
        """Mark the unit as complete: the other ranks' shards have been written."""
        ...

    def release(self, unit: int) -> None:
        """Free the parameters that other ranks own, if stage 3."""
        ...

    def gradient(self, unit: int, into: Tensor | None = None) -> Tensor:
        """Return the gradient of all parameters of a unit, as computed by this rank since the last call.

        It is finite. It is written into `into`, or into new memory. The caller owns the result.
        """
        ...

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        """Return the gradients computed here for whole parameters since the last `gradient`, to be changed in place.

        Parameters without a gradient are left out.
        """
        ...

    def space(self, unit: int) -> Tensor | None:
        """Return the memory for this rank's shard of the sum; None if it already holds a gradient."""
        ...

    def keep(self, unit: int, own: Tensor) -> None:
        """Add this rank's part of the gradient, summed over all ranks, to `ctx.model.gradient`."""
        ...
