"""What a rank stores of a model, as a value. It computes its size in bytes.

The ledger of a run and the simulator use the same figures. Activations do not belong to a holding, because they
depend on the batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import nn

from paceline.model.layout import Layout
from paceline.model.stages.units import ShardUnit, laid_out, parameter_groups, units_of

if TYPE_CHECKING:
    from paceline.model.cutting.cut import Cut

Location = Literal["device", "host", "disk"]


class Sharding(NamedTuple):
    """How ranks share segments."""

    ranks: int
    """Number of ranks that share them."""
    own: int
    """Number of this rank among them."""
    frees_parameters: bool
    """Whether a rank stores only its shard of the parameters between uses."""


class StateRange(NamedTuple):
    """Optimizer state of a range of the whole model's layout."""

    start: int
    stop: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The parameters that a rank stores: the whole model, some segments, or shards of segments."""

    layout: Layout
    """Trainable parameters: names, shapes and dtypes. `layout.dtypes` are the dtypes in computations, `layout.dtype` is
    the dtype of the flat parameters."""
    reduction_dtype: torch.dtype
    """Dtype of gradients, and of their sums over ranks."""
    master_dtype: torch.dtype | None = None
    """Dtype of a separate master copy and of the optimizer state. Optimizers update this copy. A rank stores it
    only for the values that it updates, as a part of the optimizer state. None if optimizers update the flat
    parameters."""
    frozen_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each parameter that is not trained."""
    segments: tuple[int, ...] | None = None
    """Numbers of the stored segments. None for the whole model."""
    position: int = 0
    """Position of this rank in its tensor group."""
    units: tuple[ShardUnit, ...] = ()
    """Units that ranks share. Empty if this rank stores all of its segments."""
    shard: int = 0
    """Number of this rank's shard of each unit."""
    frees_parameters: bool = False
    """Whether the shards of other ranks are freed between uses."""
    location: Location = "device"
    """Location of the master copy between uses."""

    @classmethod
    def of(
        cls,
        module: nn.Module,
        *,
        master_dtype: torch.dtype | None = None,
        reduction_dtype: torch.dtype | None = None,
    ) -> Holding:
        """Return the holding of a rank that stores a whole module. By default all dtypes are those of the module."""
        layout = Layout.of(module)
        frozen = {name: each.nbytes for name, each in module.named_parameters() if not each.requires_grad}
        return cls(
            layout=layout,
            reduction_dtype=reduction_dtype or layout.dtype,
            master_dtype=None if master_dtype == layout.dtype else master_dtype,
            frozen_bytes=frozen,
        )

    def part(self, cut: Cut, segments: Sequence[int]) -> Holding:
        """Return the holding of a rank that stores these segments. Split parameters are stored in part."""
        names = cut.parameters(segments)
        layout = _part_of(self.layout, cut, names)
        frozen = {name: nbytes for name, nbytes in self.frozen_bytes.items() if name in names}
        return replace(
            self,
            layout=layout,
            reduction_dtype=layout.dtype
            if self.reduction_dtype == self.layout.dtype
            else self.reduction_dtype,
            frozen_bytes=frozen,
            segments=tuple(segments),
            position=cut.position,
        )

    def sharded(self, cut: Cut, sharding: Sharding, *, elementwise: bool) -> Holding:
        """Return the holding of a rank that shares its segments with other ranks.

        With `elementwise` optimizers, a shard may contain a part of a parameter.
        """
        used = [segment.parameters for segment in cut.segments]
        groups = parameter_groups(used, self.held(cut), self.layout.names)
        units = units_of(self.layout, groups, sharding.ranks, evenly=elementwise)
        return replace(
            self,
            layout=laid_out(units, self.layout.dtype),
            units=tuple(units),
            shard=sharding.own,
            frees_parameters=sharding.frees_parameters,
        )

    def held(self, cut: Cut) -> tuple[int, ...]:
        """Return the numbers of the stored segments."""
        return tuple(range(len(cut.segments))) if self.segments is None else self.segments

    @property
    def own_slices(self) -> list[slice] | None:
        """This rank's shard of each unit, in the layout. None if this rank updates all parameters of the layout."""
        return [unit.own(self.shard) for unit in self.units] if self.is_sharded else None

    @property
    def is_sharded(self) -> bool:
        return bool(self.units)

    @property
    def is_whole(self) -> bool:
        """Whether this rank stores and updates all parameters of the model."""
        return self.segments is None and not self.units

    def split(self, parts: int, *, elementwise: bool) -> list[slice]:
        """Return the layout in `parts` slices. They cut parameters only where optimizers work element by element."""
        return self.layout.even_shards(parts) if elementwise else self.layout.whole_shards(parts)

    # Sizes

    @property
    def own_length(self) -> int:
        """Number of values that this rank updates."""
        own = self.own_slices
        return self.layout.length if own is None else sum(each.stop - each.start for each in own)

    @property
    def stored_length(self) -> int:
        """Number of values in the master copy between uses."""
        return self.own_length if self.frees_parameters else self.layout.length

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters between uses: master copy, copies in other dtypes, and untrained parameters."""
        copies, frozen = self.layout.copy_bytes, sum(self.frozen_bytes.values())
        return self.stored_length * self.layout.dtype.itemsize + copies + frozen

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that this rank keeps until its update."""
        return self.own_length * self.reduction_dtype.itemsize

    @property
    def gradient_ratio(self) -> float:
        """Bytes of a gradient, divided by the bytes of its parameter."""
        return self.reduction_dtype.itemsize / self.layout.dtype.itemsize

    def unit_bytes(self, place: int, kind: Literal["parameters", "gradients"] = "parameters") -> int:
        """Bytes of all parameters of a unit, or of their gradients."""
        dtype = self.layout.dtype if kind == "parameters" else self.reduction_dtype
        return self.units[place].length * dtype.itemsize

    def optimizer_bytes(self, whole: Layout, state: Sequence[StateRange], shard: slice | None = None) -> int:
        """Return the bytes of optimizer state, given that of the whole model by range of its layout.

        `state` has the dtype of the flat parameters. A master copy counts, too. `shard` is the part of the layout that
        this rank updates, if it updates less than it stores.
        """
        ranges = list(self._ranges(whole, shard))
        nbytes = sum(_overlap(state, a, b) for a, b in ranges)
        if self.master_dtype is None:
            return round(nbytes)
        wider = self.master_dtype.itemsize / self.layout.dtype.itemsize
        return round(nbytes * wider) + self.master_dtype.itemsize * sum(b - a for a, b in ranges)

    def _ranges(self, whole: Layout, shard: slice | None) -> Iterator[tuple[int, int]]:
        """Yield the values that this rank updates, as ranges of the whole model's layout.

        A part of a split parameter is given as the first values of that parameter, because all parts of the same
        size have equally much state.
        """
        owned = [shard or slice(0, self.layout.length)] if self.own_slices is None else self.own_slices
        if self.layout is whole:
            yield from ((own.start, own.stop) for own in owned)
            return
        starts = dict(zip(whole.names, whole.offsets[:-1], strict=True))
        for own in owned:
            for name, (first, stop) in zip(
                self.layout.names, itertools.pairwise(self.layout.offsets), strict=True
            ):
                a, b = max(own.start, first), min(own.stop, stop)
                if a < b:
                    yield starts[name] + a - first, starts[name] + b - first

    # Places

    @property
    def places(self) -> dict[str, slice]:
        """Slice of this rank's gradient with its part of each parameter, by name."""
        if not self.units:
            bounds = itertools.pairwise(self.layout.offsets)
            return {name: slice(a, b) for name, (a, b) in zip(self.layout.names, bounds, strict=True)}
        found, start = {}, 0
        for unit in self.units:
            shard = unit.shards[self.shard]
            bounds = itertools.pairwise(unit.layout.offsets)
            for name, (first, stop) in zip(unit.layout.names, bounds, strict=True):
                a, b = max(first, shard.start), min(stop, shard.stop)
                place = start + a - shard.start
                found[name] = slice(place, place + b - a) if a < b else slice(0, 0)
            start += shard.stop - shard.start
        return found


def _part_of(layout: Layout, cut: Cut, names: set[str]) -> Layout:
    kept = [number for number, name in enumerate(layout.names) if name in names]
    shapes = [layout.shapes[number] for number in kept]
    within = layout.within
    if cut.shares is not None:
        whole = [(layout.names[number], layout.shapes[number]) for number in kept]
        shapes = [cut.shares.shape(name, shape, cut.position) for name, shape in whole]
        within = cut.within(whole)
    dtypes = tuple(layout.dtypes[number] for number in kept)
    lengths = (shape.numel() * (1 + dtype.is_complex) for dtype, shape in zip(dtypes, shapes, strict=True))
    # A part of a model may have no trainable parameters.
    reals = [dtype.to_real() for dtype in dtypes] or [torch.get_default_dtype()]
    return Layout(
        tuple(layout.names[number] for number in kept),
        tuple(shapes),
        tuple(itertools.accumulate(lengths, initial=0)),
        dtypes,
        functools.reduce(torch.promote_types, reals),
        within,
    )


def _overlap(state: Sequence[StateRange], start: int, stop: int) -> float:
    """Return the bytes of state of a range."""
    return sum(
        each.nbytes * max(0, min(stop, each.stop) - max(start, each.start)) / (each.stop - each.start)
        for each in state
    )
