"""Segments of shapes alone: for simulations that charge time but do no mathematics."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from paceline.context import Batch
from paceline.context.crossing import Crossing
from paceline.replica.layout import Layout
from paceline.replica.pieces.cutting import Cut
from paceline.replica.samples import Source
from paceline.replica.shapes import ShapeReplica

__all__ = ["BlankPart"]


class BlankPart(ShapeReplica):
    """What `PartReplica` is, without data: what crosses a cut has its bytes and nothing in them."""

    def __init__(self, whole: ShapeReplica, cut: Cut, held: Sequence[int]) -> None:
        names = {name for number in held for name in cut.segments[number].parameters}
        self.task = whole.task
        self.module = whole.module
        self.updates = whole.updates
        self.layout = _narrowed(whole.layout, names)
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
        return _crossing(self._cut.segments[segment].values_out, batch.count)

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


def _narrowed(layout: Layout, names: set[str]) -> Layout:
    kept = [number for number, name in enumerate(layout.names) if name in names]
    lengths = (layout.offsets[number + 1] - layout.offsets[number] for number in kept)
    return Layout(
        tuple(layout.names[number] for number in kept),
        tuple(layout.shapes[number] for number in kept),
        tuple(itertools.accumulate(lengths, initial=0)),
        tuple(layout.dtypes[number] for number in kept),
        layout.dtype,
    )


@lru_cache(maxsize=1024)
def _crossing(values: tuple[int, ...], samples: int) -> Crossing:
    """The same for equal cuts and micro-batches: simulations ask for it again and again."""
    tensors = tuple(torch.empty(nbytes * samples, dtype=torch.uint8, device="meta") for nbytes in values)
    return Crossing(tensors, (True,) * len(values))
