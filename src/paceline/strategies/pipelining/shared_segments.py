"""The segments of a stage that ranks along the data axis share: they come and go with every pass."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.context import BackwardPart, Net, Pieces, Shards
from paceline.strategies.pipelining.joining import sum_together
from paceline.strategies.pipelining.segments import Segments
from paceline.strategies.sharding.exchange import Exchange

__all__ = ["SharedSegmentsOfStage"]


class SharedSegmentsOfStage(Segments):
    """All ranks that share segments make the same passes in the same order, some of them with nothing to compute."""

    _goes_through = False

    def __init__(
        self,
        pieces: Pieces,
        tensor: Net | None,
        shards: Shards,
        exchange: Exchange,
        held: Sequence[int],
        *,
        sheds: bool,
    ) -> None:
        super().__init__(pieces, tensor)
        self._shards = shards
        self._exchange = exchange
        self._sheds = sheds
        self._partial: dict[int, list[str]] = {}
        """Parameters whose gradients the tensor group sums before others do, by the first segment that uses them: its
        gradient is exchanged when all others have added to it."""
        seen: set[str] = set()
        for number in held:
            own = [name for name in pieces.segments[number].partial if name not in seen]
            self._partial[number] = own
            seen.update(own)

    async def pass_by(self, stage: int, part: BackwardPart | None) -> None:
        segments = self._of[stage]
        for segment in segments if part is None else reversed(segments):
            await self._have(segment)
            self._leave(segment)
            if part is not None and part != "inputs":
                await self._take_gradient(segment)

    async def gather_all(self, *, keeps: bool) -> None:
        for unit in self._shards.units:
            await self._exchange.gather(unit)
            if not keeps:
                self._shards.release(unit)

    async def _have(self, segment: int) -> None:
        for unit in self._shards.used_by(segment) if self._sheds else ():
            await self._exchange.gather(unit)

    def _leave(self, segment: int) -> None:
        for unit in self._shards.used_by(segment):
            self._shards.release(unit)

    async def _take_gradient(self, segment: int) -> None:
        if self._tensor is not None and self._partial[segment]:
            await sum_together(self._tensor, self._shards.gradients_of(self._partial[segment]))
        for unit in self._shards.completed_by(segment):
            await self._exchange.scatter(unit)
