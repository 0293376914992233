"""The segments of a stage that ranks along the data axis share: they come and go with every pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import BackwardPart, Crossing, Pieces, Shards
from paceline.strategies.pipelining.segments import Segments
from paceline.strategies.sharding.exchange import Exchange

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SharedSegmentsOfStage"]


class SharedSegmentsOfStage(Segments):
    """All ranks that share segments make the same passes in the same order, some of them with nothing to compute."""

    def __init__(
        self, pieces: Pieces, shards: Shards, exchange: Exchange, held: Sequence[int], *, sheds: bool
    ) -> None:
        super().__init__(pieces)
        self._held = held
        self._shards = shards
        self._exchange = exchange
        self._sheds = sheds

    async def forward(self, stage: int, micro: int, given: Crossing) -> Crossing:
        for segment in self._of[stage]:
            await self._gather(segment)
            given = await self._pieces.forward(segment, micro, given)
            self._release(segment)
        return given

    async def backward(
        self, stage: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart
    ) -> Sequence[Tensor]:
        for segment in reversed(self._of[stage]):
            await self._gather(segment)
            gradients = await self._pieces.backward(segment, micro, gradients, part)
            await self._end_backward(segment, part)
        return gradients

    async def pass_by(self, stage: int, part: BackwardPart | None) -> None:
        segments = self._of[stage]
        for segment in segments if part is None else reversed(segments):
            await self._gather(segment)
            if part is None:
                self._release(segment)
            else:
                await self._end_backward(segment, part)

    async def gather_all(self, *, keeps: bool) -> None:
        for segment in self._held:
            await self._exchange.gather(segment)
            if not keeps:
                self._shards.release(segment)

    async def _end_backward(self, segment: int, part: BackwardPart) -> None:
        self._release(segment)
        if part != "inputs":
            await self._exchange.scatter(segment)

    async def _gather(self, segment: int) -> None:
        for unit in self._shards.used_by(segment) if self._sheds else ():
            await self._exchange.gather(unit)

    def _release(self, segment: int) -> None:
        for unit in self._shards.used_by(segment):
            self._shards.release(unit)
