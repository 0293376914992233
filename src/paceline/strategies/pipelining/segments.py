"""The segments of a stage, computed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import BackwardPart, Crossing, Net, Pieces, Together
from paceline.strategies.pipelining.joining import joined

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Segments", "held_segments"]


def held_segments(pieces: Pieces, ranks: int) -> list[list[int]]:
    """The segments of each rank of a pipeline: stage k is rank k % p's."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for segment in pieces.segments:
        held[segment.stage % ranks].append(segment.number)
    return held


class Segments:
    """What a rank computes of a stage. Who shares segments with other ranks talks to them in between."""

    _goes_through = True
    """Whether nothing but passes and sums over the tensor group is done."""

    def __init__(self, pieces: Pieces, tensor: Net | None = None) -> None:
        """`tensor`: the ranks among which the matrices of these segments are split."""
        self._pieces = pieces
        self._tensor = tensor
        self._all = pieces.segments
        self._of: dict[int, list[int]] = {}
        for segment in pieces.segments:
            self._of.setdefault(segment.stage, []).append(segment.number)
        self._wanted: dict[tuple[int, int], tuple[bool, ...]] = {}
        """Of which values that came to a segment a gradient goes back, by segment and micro-batch."""

    async def forward(self, stage: int, micro: int, given: Crossing) -> Crossing:
        """What goes from a stage to the next, given what came from the one before."""
        if self._tensor is not None and self._goes_through:
            through = self._pieces.forward_through(self._of[stage], micro, given, self._tensor)
            if through is not None:
                return await through
        for number in self._of[stage]:
            segment = self._all[number]
            if segment.gradient_sums:
                self._wanted[number, micro] = given.wanted
            await self._have(number)
            given = await self._pieces.forward(number, micro, given)
            self._leave(number)
            given = given._replace(tensors=tuple(await self._joined(given.tensors, segment.sums)))
        return given

    async def backward(
        self, stage: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart
    ) -> Sequence[Tensor]:
        """The gradients of what came from the stage before, given those of what went to the next."""
        if self._tensor is not None and self._goes_through:
            through = self._pieces.backward_through(self._of[stage], micro, gradients, part, self._tensor)
            if through is not None:
                return await through
        for number in reversed(self._of[stage]):
            segment = self._all[number]
            await self._have(number)
            gradients = await self._pieces.backward(number, micro, gradients, part)
            self._leave(number)
            if part != "inputs":
                await self._take_gradient(number)
            if segment.gradient_sums and part != "weights":
                wanted = self._wanted.pop((number, micro))
                own = [
                    each._replace(place=sum(wanted[: each.place]))
                    for each in segment.gradient_sums
                    if wanted[each.place]
                ]
                gradients = await self._joined(gradients, own)
        return gradients

    async def _have(self, segment: int) -> None:
        """Before a pass: have its parameters."""

    def _leave(self, segment: int) -> None:
        """After a pass: they are not needed any more."""

    async def _take_gradient(self, segment: int) -> None:
        """After a pass that has added to the gradient of its weights."""

    async def pass_by(self, stage: int, part: BackwardPart | None) -> None:
        """Take part in a pass of other ranks with which this one shares segments; None: a forward pass."""

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in bringing together all parameters that ranks share; `keeps`: on this rank."""

    async def _joined(self, values: Sequence[Tensor], together: Sequence[Together]) -> Sequence[Tensor]:
        """Values after the tensor group has made one of some of them."""
        if self._tensor is None or not together:
            return values
        made = list(values)
        for each in together:
            made[each.place] = await joined(self._tensor, made[each.place], each.how)
        return made
