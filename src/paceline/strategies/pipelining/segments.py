"""The segments of a stage, computed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import BackwardPart, Crossing, Pieces

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Segments", "segments_of"]


def segments_of(pieces: Pieces, stages: Sequence[int]) -> list[int]:
    """The segments of some stages."""
    return [segment.number for segment in pieces.segments if segment.stage in stages]


class Segments:
    """What a rank computes of a stage. Who shares segments with other ranks talks to them in between."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._of: dict[int, list[int]] = {}
        for segment in pieces.segments:
            self._of.setdefault(segment.stage, []).append(segment.number)

    async def forward(self, stage: int, micro: int, given: Crossing) -> Crossing:
        """What goes from a stage to the next, given what came from the one before."""
        for segment in self._of[stage]:
            given = await self._pieces.forward(segment, micro, given)
        return given

    async def backward(
        self, stage: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart
    ) -> Sequence[Tensor]:
        """The gradients of what came from the stage before, given those of what went to the next."""
        for segment in reversed(self._of[stage]):
            gradients = await self._pieces.backward(segment, micro, gradients, part)
        return gradients

    async def pass_by(self, stage: int, part: BackwardPart | None) -> None:
        """Take part in a pass of other ranks with which this one shares segments; None: a forward pass."""

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in bringing together all parameters that ranks share; `keeps`: on this rank."""
