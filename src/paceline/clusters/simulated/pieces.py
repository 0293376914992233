"""The model in segments, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline.clusters.rank.pieces import RankPieces
from paceline.clusters.simulated.events import PassEvent
from paceline.costs.prices import Pass
from paceline.replica.pieces.cutting import Layers

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext  # noqa: F401

__all__ = ["SimulatedPieces"]

T = TypeVar("T")


class SimulatedPieces(RankPieces["SimulatedContext"]):
    """A pass costs its price. The layers are found once for all ranks."""

    __slots__ = ()

    def _find_layers(self, tensor: int, sequence: bool) -> Layers:
        layers, key = self._ctx.world.layers, (tensor, sequence)
        if key not in layers:
            layers[key] = super()._find_layers(tensor, sequence)
        return layers[key]

    def _timed(self, kind: int, one: Pass, micro: int, run: Callable[[], T]) -> PassEvent[T]:
        return PassEvent(self._ctx, kind, one, micro, run)
