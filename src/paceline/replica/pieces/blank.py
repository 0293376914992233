"""Segments of shapes alone: for simulations that charge time but do no mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from paceline.context import Batch
from paceline.context.crossing import Crossing
from paceline.replica.optimizers import all_work_elementwise
from paceline.replica.pieces.cutting import Cut
from paceline.replica.pieces.units import homes_of, units_of
from paceline.replica.samples import Source
from paceline.replica.shapes import ShapeReplica

__all__ = ["BlankPart", "BlankSharded"]


class BlankPart(ShapeReplica):
    """What `PartReplica` is, without data: what crosses a cut has its bytes and nothing in them."""

    def __init__(self, whole: ShapeReplica, cut: Cut, held: Sequence[int]) -> None:
        names = {name for number in held for name in cut.segments[number].parameters}
        self.task = whole.task
        self.module = whole.module
        self.updates = whole.updates
        self.layout = whole.layout.narrowed(name for name in whole.layout.names if name in names)
        self.parameters = torch.empty(self.layout.length, dtype=self.layout.dtype, device="meta")
        self._cut = cut
        self.held = tuple(held)
        self._shards = {}
        self._given: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # by segment and micro-batch

    @property
    def gradient(self) -> Tensor:
        return self.parameters

    @property
    def not_finite(self) -> None:
        return None

    @property
    def buffers(self) -> list[Tensor]:
        return []

    def begin_batch(self) -> None:
        pass

    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: Crossing
    ) -> Crossing | Tensor:
        self._given[segment, part] = given.tensors
        if segment + 1 == len(self._cut.segments):
            return torch.tensor(float("nan"))
        values = self._cut.segments[segment].values_out
        return Crossing(tuple(_blank(nbytes * batch.count) for nbytes in values), (True,) * len(values))

    def backward(self, segment: int, part: int, given: Sequence[Tensor]) -> list[Tensor]:
        return list(self._given.pop((segment, part)))  # a gradient has the shape of its value

    backward_inputs = backward

    def backward_weights(self, segment: int, part: int) -> None:
        pass

    def end_batch(self) -> None:
        pass

    def gradient_of(self, name: str) -> Tensor:
        number = self.layout.names.index(name)
        return self.gradient[self.layout.offsets[number] : self.layout.offsets[number + 1]]

    def held_buffers(self) -> list[Tensor]:
        return []

    def put(self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor]) -> None:
        pass


class BlankSharded(BlankPart):
    """What `ShardedReplica` is, without data."""

    def __init__(
        self, whole: ShapeReplica, cut: Cut, held: Sequence[int], *, ranks: int, own: int, sheds: bool
    ) -> None:
        super().__init__(whole, cut, held)
        homes = homes_of([cut.segments[number].parameters for number in held], self.layout.names)
        evenly = all_work_elementwise(whole.task, whole.module)
        self.units = units_of(self.layout, homes, ranks, evenly=evenly)
        self.sheds = sheds
        if sheds:
            lengths = (unit.shards[own].stop - unit.shards[own].start for unit in self.units)
            self.parameters = torch.empty(sum(lengths), dtype=self.layout.dtype, device="meta")

    def gather(self, place: int) -> Tensor:
        return torch.empty(self.units[place].length, dtype=self.layout.dtype, device="meta")

    def whole_gradient(self, place: int, into: Tensor | None = None) -> Tensor:
        return self.gather(place)

    def refresh(self, place: int) -> None:
        pass

    def let_go(self, place: int) -> None:
        pass

    def keep_gradient(self, place: int, own: Tensor) -> None:
        pass


@lru_cache(maxsize=256)
def _blank(nbytes: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")
