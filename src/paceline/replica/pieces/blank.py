"""Segments of shapes alone: for simulations that charge time but do no mathematics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from paceline.context import BackwardPart, Batch
from paceline.context.crossing import Crossing
from paceline.context.segment import Together
from paceline.replica.activations import Activations
from paceline.replica.layout import Layout
from paceline.replica.memory import Account, Kind
from paceline.replica.optimizers import all_work_elementwise
from paceline.replica.pieces.arranged import length_after
from paceline.replica.pieces.blank_activations import BlankActivations
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.units import homes_of, laid_out, units_of
from paceline.replica.samples import Source
from paceline.replica.shapes import ShapeReplica

__all__ = ["BlankPart", "BlankSharded"]


class BlankPart(ShapeReplica):
    """What `PartReplica` is, without data: what crosses a cut has its bytes and nothing in them."""

    def __init__(self, whole: ShapeReplica, cut: Cut, held: Sequence[int]) -> None:
        self.task = whole.task
        self.module = whole.module
        self.updates = whole.updates
        self._facts = _facts_of(whole, cut, held)
        self.layout = self._facts.layout
        self.parameters = torch.empty(self.layout.length, dtype=self.layout.dtype, device="meta")
        self._cut = cut
        self.held = tuple(held)
        self._shards = {}
        self._given: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # by segment and micro-batch
        self._whole_shapes = whole
        self._activations: BlankActivations | None = None

    def count_in(self, account: Account, few: Callable[[], Any]) -> None:
        """Write into this account what is held here, and what `PartReplica` would hold besides."""
        whole = self._whole_shapes
        if whole.is_stand_in:
            return
        memory = whole.memory
        account.hold("parameters", self.parameters.nbytes + self._facts.other_bytes)
        account.hold("gradients", self.gradient.nbytes)
        account.hold("buffers", memory.buffers)
        account.begin()
        self._activations = BlankActivations(account, whole, self._cut, few)

    def note_updated(self, account: Account, shard: slice | None) -> None:
        if self._activations is not None and self.layout.length:
            account.hold("optimizer", self._facts.optimizer_bytes)

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
        return _crossing(self._cut.segments[segment].values_out, batch.count)

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

    def forward_through(self, segments: Sequence[int], batch: Batch, part: int, given: Crossing) -> Crossing:
        """`forward` of several segments in turn, and what a tensor group makes of their values."""
        all_segments, size = self._cut.segments, self._cut.size
        first, last = all_segments[segments[0]], all_segments[segments[-1]]
        self._given[first.number, part] = given.tensors
        if first.gradient_sums:  # what goes back has been through the cut twice
            before = all_segments[first.number - 1]
            together = (*before.sums, *first.gradient_sums)
            self._given[first.number, part] = _crossing(
                before.values_out, batch.count, together, size
            ).tensors
        if self._activations is not None:
            self._activations.forward_through(segments, part, batch.count)
        if last is all_segments[-1]:
            return Crossing()
        return _crossing(last.values_out, batch.count, last.sums, size)

    def backward_through(self, segments: Sequence[int], part: int, way: BackwardPart) -> list[Tensor]:
        """`backward` of several segments, given in forward order."""
        if self._activations is not None:
            self._activations.backward_through(segments, part, way)
        return [] if way == "weights" else list(self._given.pop((segments[0], part)))

    def end_batch(self) -> None:
        pass

    def place_of(self, name: str) -> slice:
        number = self.layout.names.index(name)
        return slice(self.layout.offsets[number], self.layout.offsets[number + 1])

    def held_parameters(self) -> Tensor:
        return torch.empty(self.layout.length, dtype=self.layout.dtype, device="meta")

    def held_buffers(self) -> list[Tensor]:
        return []

    def put(
        self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], position: int = 0
    ) -> None:
        pass


class BlankSharded(BlankPart):
    """What `ShardedReplica` is, without data."""

    _account: Account | None = None
    _in_batch = False

    def __init__(
        self, whole: ShapeReplica, cut: Cut, held: Sequence[int], *, ranks: int, own: int, sheds: bool
    ) -> None:
        super().__init__(whole, cut, held)
        homes = homes_of([segment.parameters for segment in cut.segments], held, self.layout.names)
        evenly = all_work_elementwise(whole.task, whole.module) and cut.shares is None
        self.units = units_of(self.layout, homes, ranks, evenly=evenly)
        self.layout = laid_out(self.units, self.layout.dtype)
        self.sheds = sheds
        self._own_parts = [unit.own(own) for unit in self.units]
        length = sum(part.stop - part.start for part in self._own_parts)
        self._own_gradient = torch.empty(length, dtype=self.layout.dtype, device="meta")
        if sheds:
            self.parameters = self._own_gradient
        self._gathered: set[int] = set()
        self._summed: set[int] = set()

    @property
    def gradient(self) -> Tensor:
        return self._own_gradient

    def count_in(self, account: Account, few: Callable[[], Any]) -> None:
        super().count_in(account, few)
        self._account = None if self._activations is None else account

    def note_updated(self, account: Account, shard: slice | None) -> None:
        if self._account is not None:
            account.hold("optimizer", self._whole_shapes.memory.optimizer(self._own_places()))

    def _own_places(self) -> list[tuple[int, int]]:
        """This rank's parts, in the layout of the whole model."""
        whole, places = self._whole_shapes.layout, []
        starts = dict(zip(whole.names, whole.offsets[:-1], strict=True))
        for part in self._own_parts:
            for name, first, stop in zip(
                self.layout.names, self.layout.offsets[:-1], self.layout.offsets[1:], strict=True
            ):
                a, b = max(part.start, first), min(part.stop, stop)
                if a < b:
                    places.append((starts[name] + a - first, starts[name] + b - first))
        return places

    def _book(self, kind: Kind, open_units: set[int], place: int, *, comes: bool) -> None:
        if self._account is None or comes == (place in open_units):
            return
        nbytes = self.units[place].length * self.layout.dtype.itemsize
        if comes:
            open_units.add(place)
            self._account.add(kind, nbytes)
        else:
            open_units.discard(place)
            self._account.free(kind, nbytes)

    def gather(self, place: int) -> Tensor:
        if self.sheds and self._in_batch:
            self._book("parameters", self._gathered, place, comes=True)
        return self._unit(place)

    def begin_batch(self) -> None:
        self._in_batch = True

    def end_batch(self) -> None:
        self._in_batch = False  # what is gathered from now on is to look at the model

    def refresh(self, place: int) -> None:
        pass

    def let_go(self, place: int) -> None:
        self._book("parameters", self._gathered, place, comes=False)

    def backward_weights(self, segment: int, part: int) -> None:
        super().backward_weights(segment, part)
        for place, unit in enumerate(self.units):
            if segment in unit.home.users:
                self._book("gradients", self._summed, place, comes=True)

    def whole_gradient(self, place: int, into: Tensor | None = None) -> Tensor:
        self._book("gradients", self._summed, place, comes=True)
        return self._unit(place)

    def gradient_space(self, place: int) -> None:
        return None

    def gradients_of(self, names: Sequence[str]) -> list[Tensor]:
        lengths = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return [torch.empty(lengths[name], dtype=self.layout.dtype, device="meta") for name in names]

    def keep_gradient(self, place: int, own: Tensor) -> None:
        self._book("gradients", self._summed, place, comes=False)

    def _unit(self, place: int) -> Tensor:
        return torch.empty(self.units[place].length, dtype=self.layout.dtype, device="meta")


class _Facts:
    """What ranks know that hold the same segments: found once for all of them."""

    def __init__(self, whole: ShapeReplica, cut: Cut, held: Sequence[int]) -> None:
        self._whole = whole
        self._names = cut.parameters(held)
        self.layout = _narrowed(whole.layout, cut, self._names)

    @cached_property
    def other_bytes(self) -> int:
        """Of parameters that are not trained, and narrow copies."""
        other = Activations([self._whole.parameters])
        other.note([each for name, each in self._whole.module.named_parameters() if name in self._names])
        return other.let_go()

    @cached_property
    def optimizer_bytes(self) -> int:
        layout, own = self._whole.layout, self.layout
        starts = dict(zip(layout.names, layout.offsets[:-1], strict=True))
        lengths = zip(own.names, own.offsets[:-1], own.offsets[1:], strict=True)
        # Of a part of a parameter as much is remembered as of any other stretch of that length.
        ranges = [(starts[name], starts[name] + stop - start) for name, start, stop in lengths]
        return self._whole.memory.optimizer(ranges)


def _facts_of(whole: ShapeReplica, cut: Cut, held: Sequence[int]) -> _Facts:
    key = cut.bounds, cut.position, tuple(held)
    if key not in whole.known_parts:
        whole.known_parts[key] = _Facts(whole, cut, held)
    facts: _Facts = whole.known_parts[key]
    return facts


def _narrowed(layout: Layout, cut: Cut, names: set[str]) -> Layout:
    kept = [number for number, name in enumerate(layout.names) if name in names]
    shapes = [layout.shapes[number] for number in kept]
    if cut.shares is not None:
        shapes = [
            cut.shares.shape(layout.names[number], layout.shapes[number], cut.position) for number in kept
        ]
    lengths = (
        shape.numel() * (1 + layout.dtypes[n].is_complex) for n, shape in zip(kept, shapes, strict=True)
    )
    return Layout(
        tuple(layout.names[number] for number in kept),
        tuple(shapes),
        tuple(itertools.accumulate(lengths, initial=0)),
        tuple(layout.dtypes[number] for number in kept),
        layout.dtype,
    )


@lru_cache(maxsize=1024)
def _crossing(
    values: tuple[int, ...], samples: int, together: tuple[Together, ...] = (), size: int = 1
) -> Crossing:
    """The same for equal cuts and micro-batches: simulations ask for it again and again."""
    lengths = [nbytes * samples for nbytes in values]
    for each in together:
        lengths[each.place] = length_after(lengths[each.place], each.how, size)
    tensors = tuple(torch.empty(length, dtype=torch.uint8, device="meta") for length in lengths)
    return Crossing(tensors, (True,) * len(values))
