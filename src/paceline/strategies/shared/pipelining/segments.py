"""The segments of a stage, computed one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from paceline.context import BackwardPart, BoundaryValues, Net, Segment, Stages

if TYPE_CHECKING:
    from torch import Tensor


def held_segments(segments: Sequence[Segment], ranks: int) -> list[list[int]]:
    """Return the segments of each rank of a pipeline with p ranks: rank k % p holds stage k."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for segment in segments:
        held[segment.stage % ranks].append(segment.number)
    return held


class Segments:
    """Computes the segments of a stage, with the reductions over its tensor group."""

    def __init__(self, stages: Stages, segments: Sequence[Segment], tensor: Net) -> None:
        """Group the segments of the model by stage. `tensor` is the ranks that the matrices are split among."""
        self._stages = stages
        self._segments = segments
        self._tensor = tensor
        self._of: dict[int, list[int]] = {}
        for segment in segments:
            self._of.setdefault(segment.stage, []).append(segment.number)

    def forward(self, stage: int, micro: int, given: BoundaryValues) -> Awaitable[BoundaryValues]:
        """Run the forward pass of a stage: return its outputs, given the outputs of the previous stage."""
        return self._stages.forward(self._of[stage], micro, given, self._tensor)

    def backward(
        self, stage: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart
    ) -> Awaitable[Sequence[Tensor]]:
        """Run the backward pass of a stage: return the gradients of its inputs, given the gradients of its outputs."""
        return self._stages.backward(self._of[stage], micro, gradients, part, self._tensor)

    async def pass_by(self, stage: int, part: BackwardPart | None) -> None:
        """Take part in a pass of the ranks that share these segments, with no samples. None for a forward pass."""

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in gathering all sharded parameters. With `keeps` this rank keeps them."""
