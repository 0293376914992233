"""A model whose segments all ranks share: each has a segment's parameters while it computes it, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.context import Batch, Context, Crossing, Handle, Shards
from paceline.strategies.sharding.exchange import Exchange

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SharedSegments"]

_FEW = 5
"""With fewer segments one more than two would be much of what a rank holds: a backward pass then has none beside it."""


class _Pass(NamedTuple):
    """Of one micro-batch through one segment."""

    segment: int
    micro: int
    is_backward: bool
    is_empty: bool


class SharedSegments:
    """Computes batches segment by segment.

    Beside a pass, the gradient that the last one left is summed, and then the parameters of the next one come: one
    after the other, so that a rank has three units at a time, gradients and parameters together, and not four.
    """

    def __init__(
        self, ctx: Context, shards: Shards, exchange: Exchange, segments: Sequence[int], *, sheds: bool
    ) -> None:
        self._ctx = ctx
        self._pieces = ctx.model.pieces
        self._shards = shards
        self._exchange = exchange
        self._segments = list(segments)
        self._sheds = sheds
        self._is_tight = sheds and len(self._segments) < _FEW
        self._here: set[int] = set()
        self._beside: Handle[None] | None = None
        self._given = Crossing()
        self._gradients: Sequence[Tensor] = ()

    async def compute(self, batch: Batch, microbatches: int | None) -> None:
        """The gradient of a batch: of this rank's part of each segment, summed over all ranks."""
        widest = self._ctx.model.data.batch_of(0, batch.step).count
        passes = self._passes(self._pieces.begin_batch(batch, microbatches, widest=widest))
        await self._have(passes[0])
        await self._go_on_beside(None, passes[:2])
        for place, one in enumerate(passes):
            await self._have(one)
            await self._do(one)
            self._leave(one, passes[place + 1 : place + 2])
            await self._end_beside()
            await self._go_on_beside(one, passes[place + 1 : place + 3])
        await self._end_beside()
        self._pieces.end_batch()

    def _passes(self, parts: Sequence[Batch]) -> list[_Pass]:
        return [
            _Pass(segment, micro, is_backward, not part.count)
            for micro, part in enumerate(parts)
            for is_backward in (False, True)
            for segment in (self._segments[::-1] if is_backward else self._segments)
        ]

    async def _do(self, one: _Pass) -> None:
        if one.segment == self._segments[0] and not one.is_backward:
            self._given, self._gradients = Crossing(), ()
        if one.is_empty:
            return
        if one.is_backward:
            self._gradients = await self._pieces.backward(one.segment, one.micro, self._gradients)
        else:
            self._given = await self._pieces.forward(one.segment, one.micro, self._given)

    # What goes on beside a pass

    async def _go_on_beside(self, done: _Pass | None, following: Sequence[_Pass]) -> None:
        """Begin what goes on beside the first of the passes that follow one that is done."""
        left = self._shards.completed_by(done.segment) if done is not None and done.is_backward else ()
        wanted = following[1:] if self._exchange.foresees else ()
        if self._is_tight and following and following[0].is_backward:
            await self._exchange_in_turn(left, ())
            return
        coming = [unit for one in wanted for unit in self._used_by(one) if unit not in self._here]
        if left or coming:
            self._beside = self._ctx.start(self._exchange_in_turn(left, coming))

    async def _exchange_in_turn(self, left: Sequence[int], coming: Sequence[int]) -> None:
        """One exchange after the other, on all ranks in this order; nothing else is exchanged meanwhile."""
        for unit in left:
            await self._exchange.scatter(unit)
        for unit in coming:
            await self._gather(unit)

    async def _end_beside(self) -> None:
        if self._beside is not None:
            await self._beside
            self._beside = None

    # What is here

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in bringing all parameters together; `keeps`: on this rank."""
        for unit in self._shards.units if self._sheds else ():
            await self._exchange.gather(unit)
            if not keeps:
                self._shards.release(unit)

    async def _have(self, one: _Pass) -> None:
        for unit in self._used_by(one):
            if unit not in self._here:
                await self._gather(unit)

    async def _gather(self, unit: int) -> None:
        await self._exchange.gather(unit)
        self._here.add(unit)

    def _leave(self, one: _Pass, following: Sequence[_Pass]) -> None:
        """Give up what the pass that follows does not need."""
        needed = {unit for each in following for unit in self._used_by(each)}
        for unit in self._used_by(one):
            if unit not in needed:
                self._shards.release(unit)
                self._here.discard(unit)

    def _used_by(self, one: _Pass) -> Sequence[int]:
        return self._shards.used_by(one.segment) if self._sheds else ()
