"""The segments of a stage, sharded along the data axis: they are gathered and freed in every pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.collectives.group_reductions import reduce_values, sum_together
from paceline.context import BackwardPart, BoundaryValues, Net, Segment, Shards, Stages
from paceline.strategies.shared.pipelining.segments import Segments
from paceline.strategies.shared.sharding.exchange import Exchange
from paceline.strategies.shared.sharding.units import completed_by, used_by

if TYPE_CHECKING:
    from torch import Tensor


class ZeroStage(Segments):
    """Sharded segments. All ranks of the data axis make the same passes in the same order, some with no samples."""

    def __init__(
        self,
        stages: Stages,
        segments: Sequence[Segment],
        tensor: Net,
        shards: Shards,
        exchange: Exchange,
        held: Sequence[int],
        *,
        frees_parameters: bool,
    ) -> None:
        super().__init__(stages, segments, tensor)
        self._shards = shards
        self._exchange = exchange
        self._frees = frees_parameters
        self._used, self._completed = used_by(shards.units), completed_by(shards.units)
        self._wanted: dict[tuple[int, int], tuple[bool, ...]] = {}
        """Which inputs of a segment need a gradient, by segment and micro-batch."""
        self._partial: dict[int, list[str]] = {}
        """Parameters with gradients that are summed over the tensor group first, then over the data axis. By first
        segment.

        The gradient of the first segment is exchanged last, when all other segments have added to it.
        """
        seen: set[str] = set()
        for number in held:
            own = [name for name in segments[number].partial if name not in seen]
            self._partial[number] = own
            seen.update(own)

    async def forward(self, stage: int, micro: int, given: BoundaryValues) -> BoundaryValues:
        for number in self._of[stage]:
            segment = self._segments[number]
            self._wanted[number, micro] = given.wanted
            await self._gather(number)
            given = await self._stages.forward([number], micro, given)
            self._free(number)
            tensors = await reduce_values(self._tensor, given.tensors, segment.reductions)
            given = given._replace(tensors=tuple(tensors))
        return given

    async def backward(
        self, stage: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart
    ) -> Sequence[Tensor]:
        for number in reversed(self._of[stage]):
            segment = self._segments[number]
            await self._gather(number)
            gradients = await self._stages.backward([number], micro, gradients, part)
            self._free(number)
            if part != "inputs":
                await self._reduce_gradient(number)
            if part != "weights":
                reductions = segment.gradient_reductions_of(self._wanted.pop((number, micro)))
                gradients = await reduce_values(self._tensor, gradients, reductions)
        return gradients

    async def pass_by(self, stage: int, part: BackwardPart | None) -> None:
        segments = self._of[stage]
        for segment in segments if part is None else reversed(segments):
            await self._gather(segment)
            self._free(segment)
            if part is not None and part != "inputs":
                await self._reduce_gradient(segment)

    async def gather_all(self, *, keeps: bool) -> None:
        for unit in self._shards.units:
            await self._exchange.gather(unit.number)
            if not keeps:
                self._shards.release(unit.number)

    async def _gather(self, segment: int) -> None:
        for unit in self._used[segment] if self._frees else ():
            await self._exchange.gather(unit)

    def _free(self, segment: int) -> None:
        for unit in self._used[segment]:
            self._shards.release(unit)

    async def _reduce_gradient(self, segment: int) -> None:
        if self._partial[segment]:
            await sum_together(self._tensor, self._shards.gradients_of(self._partial[segment]))
        for unit in self._completed.get(segment, ()):
            await self._exchange.scatter(unit)
