"""A model whose segments all ranks share: each has a segment's parameters while it computes it, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import Batch, Context, Crossing, Handle, Shards
from paceline.strategies.sharding.exchange import Exchange

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SharedSegments"]


class SharedSegments:
    """Computes batches segment by segment. The next segment's parameters come while one is computed."""

    def __init__(
        self, ctx: Context, shards: Shards, exchange: Exchange, segments: Sequence[int], *, sheds: bool
    ) -> None:
        self._ctx = ctx
        self._pieces = ctx.model.pieces
        self._shards = shards
        self._exchange = exchange
        self._segments = list(segments)
        self._sheds = sheds
        self._coming: dict[int, Handle[None]] = {}
        self._here: set[int] = set()
        self._scattering: Handle[None] | None = None

    async def compute(self, batch: Batch, microbatches: int | None) -> None:
        """The gradient of a batch: of this rank's part of each segment, summed over all ranks."""
        widest = self._ctx.model.data.batch_of(0, batch.step).count
        for micro, part in enumerate(self._pieces.begin_batch(batch, microbatches, widest=widest)):
            await self._forward(micro, is_empty=not part.count)
            # A backward pass adds to the first segment's gradient from its beginning, where weights are tied.
            await self._end_scattering()
            await self._backward(micro, is_empty=not part.count)
        await self._end_scattering()
        self._pieces.end_batch()

    async def _forward(self, micro: int, *, is_empty: bool) -> None:
        given, last = Crossing(), self._segments[-1]
        for place, segment in enumerate(self._segments):
            await self._have(segment)
            self._foresee(self._segments[place + 1 : place + 2])
            if not is_empty:
                given = await self._pieces.forward(segment, micro, given)
            if segment != last:  # that one comes first in the backward pass
                self._leave(segment, self._segments[place + 1])

    async def _backward(self, micro: int, *, is_empty: bool) -> None:
        gradients: Sequence[Tensor] = ()
        order = self._segments[::-1]
        for place, segment in enumerate(order):
            await self._have(segment)
            self._foresee(order[place + 1 : place + 2])
            if not is_empty:
                gradients = await self._pieces.backward(segment, micro, gradients)
            following = order[place + 1] if place + 1 < len(order) else None
            self._leave(segment, following)
            await self._end_scattering()
            self._scattering = self._ctx.start(self._exchange.scatter(segment))
            if not self._exchange.overlaps:
                await self._end_scattering()

    async def _end_scattering(self) -> None:
        if self._scattering is not None:
            await self._scattering
            self._scattering = None

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in bringing all parameters together; `keeps`: on this rank."""
        for segment in self._segments if self._sheds else ():
            await self._exchange.gather(segment)
            if not keeps:
                self._shards.release(segment)

    # What is here

    async def _have(self, segment: int) -> None:
        self._expect([segment])
        for unit in self._used_by(segment):
            if unit in self._coming:
                await self._coming.pop(unit)
                self._here.add(unit)

    def _foresee(self, segments: Sequence[int]) -> None:
        if self._exchange.foresees:
            self._expect(segments)

    def _expect(self, segments: Sequence[int]) -> None:
        """Begin to gather."""
        for segment in segments:
            for unit in self._used_by(segment):
                if unit not in self._here and unit not in self._coming:
                    self._coming[unit] = self._ctx.start(self._exchange.gather(unit))

    def _leave(self, segment: int, following: int | None) -> None:
        """Give up what the segment that follows does not need."""
        needed = () if following is None else self._used_by(following)
        for unit in self._used_by(segment):
            if unit not in needed:
                self._shards.release(unit)
                self._here.discard(unit)

    def _used_by(self, segment: int) -> Sequence[int]:
        return self._shards.used_by(segment) if self._sheds else ()
