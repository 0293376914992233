"""A model sharded among all ranks: a rank has the parameters of a segment only while it computes the segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.context import Batch, BoundaryValues, Context, Handle, Shards
from paceline.strategies.shared.sharding.exchange import Exchange
from paceline.strategies.shared.sharding.units import completed_by, used_by

if TYPE_CHECKING:
    from torch import Tensor

_FEW = 5
"""With fewer segments, a third unit in memory would be a large part of the model.

Backward passes then do not overlap with exchanges.
"""


class _Pass(NamedTuple):
    """A forward or backward pass of one micro-batch through one segment."""

    segment: int
    micro: int
    is_backward: bool
    is_empty: bool


class SharedSegments:
    """Computes batches segment by segment.

    During a pass, the gradient of the previous pass is reduced, and then the parameters of the next pass are gathered.
    These two run one after the other, so that a rank has three units in memory at a time, gradients and parameters
    together, and not four.
    """

    def __init__(
        self,
        ctx: Context,
        shards: Shards,
        exchange: Exchange,
        segments: Sequence[int],
        *,
        frees_parameters: bool,
    ) -> None:
        self._ctx = ctx
        self._stages = ctx.model.stages
        self._shards = shards
        self._exchange = exchange
        self._segments = list(segments)
        self._frees = frees_parameters
        self._used, self._completed = used_by(shards.units), completed_by(shards.units)
        self._is_tight = frees_parameters and len(self._segments) < _FEW
        self._here: set[int] = set()
        self._beside: Handle[None] | None = None
        self._given = BoundaryValues()
        self._gradients: Sequence[Tensor] = ()

    async def compute(self, batch: Batch, microbatches: int | None) -> None:
        """Compute the gradient of a batch: this rank's shard of each segment, summed over all ranks."""
        widest = self._ctx.batch_of(0, batch.step).count
        with self._stages.batch(batch, microbatches, widest=widest) as micros:
            passes = self._passes(micros)
            await self._have(passes[0])
            await self._go_on_beside(None, passes[:2])
            for place, one in enumerate(passes):
                await self._have(one)
                await self._do(one)
                self._leave(one, passes[place + 1 : place + 2])
                await self._end_beside()
                await self._go_on_beside(one, passes[place + 1 : place + 3])
            await self._end_beside()

    def _passes(self, parts: Sequence[Batch]) -> list[_Pass]:
        return [
            _Pass(segment, micro, is_backward, not part.count)
            for micro, part in enumerate(parts)
            for is_backward in (False, True)
            for segment in (self._segments[::-1] if is_backward else self._segments)
        ]

    async def _do(self, one: _Pass) -> None:
        if one.segment == self._segments[0] and not one.is_backward:
            self._given, self._gradients = BoundaryValues(), ()
        if one.is_empty:
            return
        if one.is_backward:
            self._gradients = await self._stages.backward([one.segment], one.micro, self._gradients)
        else:
            self._given = await self._stages.forward([one.segment], one.micro, self._given)

    # Exchanges that overlap with a pass

    async def _go_on_beside(self, done: _Pass | None, following: Sequence[_Pass]) -> None:
        """Start the transfers that overlap with the next pass."""
        left: Sequence[int] = ()
        if done is not None and done.is_backward:
            left = self._completed.get(done.segment, ())
        wanted = following[1:] if self._exchange.prefetches else ()
        if self._is_tight and following and following[0].is_backward:
            await self._exchange_in_turn(left, ())
            return
        coming = [unit for one in wanted for unit in self._used_by(one) if unit not in self._here]
        if left or coming:
            self._beside = self._ctx.start(self._exchange_in_turn(left, coming))

    async def _exchange_in_turn(self, left: Sequence[int], coming: Sequence[int]) -> None:
        """Run the exchanges one after the other, in the same order on all ranks. No other exchange runs meanwhile."""
        for unit in left:
            await self._exchange.scatter(unit)
        for unit in coming:
            await self._gather(unit)

    async def _end_beside(self) -> None:
        if self._beside is not None:
            await self._beside
            self._beside = None

    # Units in memory

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in gathering all parameters. With `keeps` this rank keeps them."""
        for unit in self._shards.units if self._frees else ():
            await self._exchange.gather(unit.number)
            if not keeps:
                self._shards.release(unit.number)

    async def _have(self, one: _Pass) -> None:
        for unit in self._used_by(one):
            if unit not in self._here:
                await self._gather(unit)

    async def _gather(self, unit: int) -> None:
        await self._exchange.gather(unit)
        self._here.add(unit)

    def _leave(self, one: _Pass, following: Sequence[_Pass]) -> None:
        """Free the units that the following pass does not need."""
        needed = {unit for each in following for unit in self._used_by(each)}
        for unit in self._used_by(one):
            if unit not in needed:
                self._shards.release(unit)
                self._here.discard(unit)

    def _used_by(self, one: _Pass) -> Sequence[int]:
        return self._used[one.segment] if self._frees else ()
