"""Segments of shapes alone: for simulations that charge time but do no mathematics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from paceline.context import Batch
from paceline.context.crossing import Crossing
from paceline.replica.activations import Activations
from paceline.replica.layout import Layout
from paceline.replica.memory import Account
from paceline.replica.pieces.blank_activations import BlankActivations
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
        self._whole_shapes = whole
        self._names = names
        self._activations: BlankActivations | None = None

    def count_in(self, account: Account, few: Callable[[], Any], *, keeps_whole: bool) -> None:
        """Write into this account what is held here, and what `PartReplica` would hold besides."""
        whole = self._whole_shapes
        if whole.is_stand_in:
            return
        memory = whole.memory
        other = Activations([whole.parameters])  # parameters that are not trained, and narrow copies
        other.note([each for name, each in whole.module.named_parameters() if name in self._names])
        own_bytes = self.parameters.nbytes + other.let_go()
        account.hold("parameters", own_bytes + keeps_whole * memory.parameters)
        account.hold("gradients", self.parameters.nbytes)
        account.hold("buffers", memory.buffers * (1 + keeps_whole))
        account.begin()
        self._activations = BlankActivations(account, whole, self._cut, few)

    def note_updated(self, account: Account, shard: slice | None) -> None:
        if self._activations is not None and self.layout.length:
            layout = self._whole_shapes.layout
            places = [number for number, name in enumerate(layout.names) if name in self._names]
            ranges = [(layout.offsets[number], layout.offsets[number + 1]) for number in places]
            account.hold("optimizer", self._whole_shapes.memory.optimizer(ranges))

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
        if self._activations is not None:
            self._activations.forward(segment, part, batch.count)
        if segment + 1 == len(self._cut.segments):
            return torch.tensor(float("nan"))
        values = self._cut.segments[segment].values_out
        return Crossing(tuple(_blank(nbytes * batch.count) for nbytes in values), (True,) * len(values))

    def backward(self, segment: int, part: int, given: Sequence[Tensor]) -> list[Tensor]:
        made = self.backward_inputs(segment, part, given)
        self.backward_weights(segment, part)
        return made

    def backward_inputs(self, segment: int, part: int, given: Sequence[Tensor]) -> list[Tensor]:
        if self._activations is not None:
            self._activations.backward(segment, part)
        return list(self._given.pop((segment, part)))  # a gradient has the shape of its value

    def backward_weights(self, segment: int, part: int) -> None:
        if self._activations is not None:
            self._activations.end(segment, part)

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


@lru_cache(maxsize=256)
def _blank(nbytes: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")
