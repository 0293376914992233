"""The model in segments, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline.clusters.rank.pieces import RankPieces
from paceline.clusters.simulated.events import Timer
from paceline.costs.prices import Pass
from paceline.replica.pieces.cutting import Layers
from paceline.trace import Kind
from paceline.trace.spans import pack_span

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext  # noqa: F401

__all__ = ["SimulatedPieces"]

T = TypeVar("T")


class SimulatedPieces(RankPieces["SimulatedContext"]):
    """A pass costs its price. The layers are found once for all ranks."""

    __slots__ = ()

    def _find_layers(self, tensor: int) -> Layers:
        layers = self._ctx.world.layers
        if tensor not in layers:
            layers[tensor] = super()._find_layers(tensor)
        return layers[tensor]

    async def _timed(self, kind: Kind, one: Pass, micro: int, run: Callable[[], T]) -> T:
        ctx = self._ctx
        start_s = ctx.kernel.now
        seconds = ctx.price.pass_seconds(one)
        made = run()
        if seconds:
            await Timer(ctx, seconds)
        ctx.record_packed(pack_span(kind, start_s, ctx.kernel.now, micro, 0, ctx.step))
        return made
