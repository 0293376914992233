"""A replica that shares its segments with other ranks: of each it keeps a part, and has the rest while it is needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.replica.accounting import Accounting
from paceline.replica.activations import bytes_of
from paceline.replica.binding import Binding
from paceline.replica.finite import check_updated, not_finite_in
from paceline.replica.layout import Layout, flatten, real_view
from paceline.replica.optimizers import Updates, all_work_elementwise
from paceline.replica.pieces.backward import Gradients
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.part import PartReplica
from paceline.replica.pieces.units import Passing, homes_of, laid_out, units_of
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples

__all__ = ["ShardedReplica"]


class _UnitGradient:
    """What autograd found for the parameters of a unit, until it is written where ranks exchange it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._found: list[Tensor | None] = [None] * len(layout.names)
        self.nbytes = 0

    def add(self, number: int, gradient: Tensor) -> None:
        """Add to the gradient of a parameter."""
        real = real_view(gradient.to_dense() if gradient.is_sparse else gradient)
        before = self._found[number]
        # Not in place: autograd may have given the same tensor to somebody else.
        after = real if before is None else before.to(self._layout.dtype) + real
        self._found[number] = after
        self.nbytes += after.nbytes - (0 if before is None else before.nbytes)

    def of(self, number: int) -> Tensor | None:
        """What was found for a parameter; None if nothing was. Nobody else has it."""
        found = self._found[number]
        if found is not None:
            self._found[number] = found = found.to(self._layout.dtype, copy=True)
        return found

    def write(self, flat: Tensor) -> None:
        """Write all of it, and keep none: zeros where no output depends on a parameter."""
        for number, view in enumerate(self._layout.views(flat)):
            found, self._found[number] = self._found[number], None
            if found is None:
                view.zero_()
            else:
                view.copy_(found)
        self.nbytes = 0


class ShardedReplica(PartReplica):
    """It goes on with the module of another replica; nothing of that is copied but the parameters that it keeps.

    `parameters`, `gradient` and `apply` are of this rank's part of each unit. A replica that does not shed its
    parameters has all of them, unit by unit, and updates its part of them in place.
    """

    _in_batch = False

    def __init__(self, before: Replica, cut: Cut, *, ranks: int, own: int, sheds: bool) -> None:
        vars(self).update(vars(before))
        if not isinstance(before, PartReplica):
            self._whole, self.held, self._wanted = None, tuple(range(len(cut.segments))), {}
        self._is_all = not isinstance(before, PartReplica)
        self._cut, self.sheds, self._own = cut, sheds, own
        self._device, self.is_bare = before.device, False
        evenly = all_work_elementwise(self.task, self.module) and not before.layout.within
        homes = homes_of([segment.parameters for segment in cut.segments], self.held, before.layout.names)
        self.units = units_of(before.layout, homes, ranks, evenly=evenly)
        self._home = {name: place for place, home in enumerate(homes) for name in home.names}
        """The unit of each parameter."""
        self.layout = laid_out(self.units, before.layout.dtype)
        self._accounting = Accounting()
        self._accounting.account = before.give_account()
        self._take_over(before)
        self._frozen_bytes = bytes_of(p for p in self.module.parameters() if not p.requires_grad)
        self._book()
        self._accounting.account.begin()
        self._passes = {number: self._passes_of(number) for number in self.held}

    def _take_over(self, before: Replica) -> None:
        named = dict(self.module.named_parameters())
        # First of all: nothing is computed yet, and the parameters are about to be copied.
        before.gradient.untyped_storage().resize_(0)
        self._own_parts = [unit.own(self._own) for unit in self.units]
        self._starts = _starts_of(self._own_parts)
        self._own_gradient = torch.zeros(self._starts[-1], dtype=self.layout.dtype, device=self._device)
        self._begun: set[int] = set()  # units of whose gradient there is something in this batch
        self._gradients = [_UnitGradient(unit.layout) for unit in self.units]
        self._under_way: dict[int, int] = {}  # bytes of whole gradients that ranks are summing, by unit
        self._bindings = [
            Binding(unit.layout, [named[name] for name in unit.layout.names], self._device)
            for unit in self.units
        ]
        self._places = {
            id(named[name]): (place, number)
            for place, unit in enumerate(self.units)
            for number, name in enumerate(unit.layout.names)
        }
        self._part(before)
        before.release()
        own = [part for part in self._own_parts if part.start < part.stop]
        self.updates = Updates(self.task, self.module, self.layout, self._flats, own)
        if before.updates.kept is not None:
            self.updates.kept = before.updates.kept.laid_out(self.layout)

    def _part(self, before: Replica) -> None:
        """Take the parameters over, unit by unit: so that this rank's part is all that there is of them twice."""
        old = (
            dict(self.module.named_parameters())
            if before.is_bare
            else dict(zip(before.layout.names, before.layout.views(before.parameters), strict=True))
        )
        if not self.sheds:
            self._hold(_flat_of(self.layout, old, self._device))
            return
        self.parameters = torch.empty(self._starts[-1], dtype=self.layout.dtype, device=self._device)
        for unit, start, stop in zip(self.units, self._starts, self._starts[1:], strict=False):
            self.parameters[start:stop] = _flat_of(unit.layout, old, self._device, unit.shards[self._own])
        self._wholes = []
        for unit, binding in zip(self.units, self._bindings, strict=True):
            whole = torch.empty(unit.length, dtype=self.layout.dtype, device=self._device)
            binding.hold(whole)
            self._wholes.append(Passing(whole))
            self._wholes[-1].go()

    def _hold(self, flat: Tensor) -> None:
        """Have all parameters as they lie there."""
        self.parameters = flat
        parts = [flat[unit.start : unit.start + unit.length] for unit in self.units]
        self._wholes = [Passing(part) for part in parts]
        for binding, part in zip(self._bindings, parts, strict=True):
            binding.hold(part)

    # Memory

    @property
    def whole(self) -> Replica | None:
        return self if self._is_all else self._whole

    @property
    def holds_all(self) -> bool:
        return False

    @property
    def gradient(self) -> Tensor:
        return self._own_gradient

    def _flats(self, part: slice) -> tuple[Tensor, Tensor]:
        """Of a part of the layout that lies within this rank's part of one unit."""
        place = bisect_right([unit.start for unit in self.units], part.start) - 1
        while not self._own_parts[place].start <= part.start < self._own_parts[place].stop:
            place -= 1  # units without parameters begin where the next one does
        shift = self._starts[place] - self._own_parts[place].start
        here = slice(part.start + shift, part.stop + shift)
        return self.parameters[here if self.sheds else part], self._own_gradient[here]

    def place(self, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        if parameters is None or parameters.data_ptr() == self.parameters.data_ptr():
            return
        assert not self.updates.have_begun, "a replica can be placed only before its first update"
        if self.sheds:
            self.parameters = parameters
        else:
            self._hold(parameters)

    def _book(self) -> None:
        """Write down what is here now."""
        account = self._accounting.account
        gathered = sum(whole.nbytes for whole in self._wholes) if self.sheds else 0
        account.hold("parameters", self.parameters.nbytes + gathered + self._frozen_bytes)
        found = sum(gradient.nbytes for gradient in self._gradients)
        account.hold("gradients", self._own_gradient.nbytes + found + sum(self._under_way.values()))

    def gather(self, place: int) -> Tensor:
        """Memory for all parameters of a unit, with this rank's part in its place."""
        whole = self._wholes[place].come()
        if self._in_batch:
            self._book()
        if self.sheds:
            shard = self.units[place].shards[self._own]
            whole[shard].copy_(self.parameters[self._starts[place] : self._starts[place + 1]])
        return whole

    def refresh(self, place: int) -> None:
        """The other ranks' parts have come."""
        self._bindings[place].refresh()

    def let_go(self, place: int) -> None:
        """Give up the memory of what other ranks hold of a unit."""
        if self.sheds:
            self._wholes[place].go()
            self._book()

    # Passes

    def _take(self, weights: Sequence[Tensor], found: Gradients) -> None:
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                place, number = self._places[id(weight)]
                self._gradients[place].add(number, gradient)
        self._book()

    def begin_batch(self) -> None:
        self._hide_whole()
        for place in range(len(self.units)):
            self.let_go(place)
        self._in_batch = True
        self._begun.clear()
        self._gradient.not_finite = None

    def end_batch(self) -> None:
        """Each unit's gradient was looked at before it was handed over."""
        assert len(self._begun) == len(self.units), "every unit's gradient is summed in every batch"
        self._in_batch = False  # what is gathered from now on is to look at the model

    def whole_gradient(self, place: int, into: Tensor | None = None) -> Tensor:
        """The gradient of a unit, of what was computed here since it was last asked for."""
        layout = self.units[place].layout
        flat = torch.empty(layout.length, dtype=layout.dtype, device=self._device) if into is None else into
        self._gradients[place].write(flat)
        self._under_way[place] = flat.nbytes if into is None else 0
        self._book()
        if layout.length and self._gradient.not_finite is None:
            self._gradient.not_finite = not_finite_in(layout, flat, range(len(layout.names)))
        return flat

    def gradients_of(self, names: Sequence[str]) -> list[Tensor]:
        """Those of whole parameters, before ranks exchange them."""
        found = []
        for name in names:
            place = self._home[name]
            gradient = self._gradients[place].of(self.units[place].layout.names.index(name))
            found += [] if gradient is None else [gradient]
        return found

    def gradient_space(self, place: int) -> Tensor | None:
        """Where this rank's part of a unit's gradient belongs, if nothing of this batch is there yet."""
        return None if place in self._begun else self._own_part(place)

    def _own_part(self, place: int) -> Tensor:
        return self._own_gradient[self._starts[place] : self._starts[place + 1]]

    def keep_gradient(self, place: int, own: Tensor) -> None:
        """Add this rank's part of a unit's gradient, summed over all ranks."""
        before = self._own_part(place)
        if place in self._begun:
            before.add_(own)
        elif own.data_ptr() != before.data_ptr():
            before.copy_(own)
        self._begun.add(place)
        self._under_way.pop(place, None)
        self._book()

    def place_of(self, name: str) -> slice:
        """Where this rank's part of a parameter lies in `gradient`."""
        place, number = self._home[name], self.units[self._home[name]].layout.names.index(name)
        offsets, shard = self.units[place].layout.offsets, self.units[place].shards[self._own]
        a, b = max(offsets[number], shard.start), min(offsets[number + 1], shard.stop)
        start = self._starts[place] + a - shard.start
        return slice(start, start + b - a) if a < b else slice(0, 0)

    # Looking at the model

    def held_parameters(self) -> Tensor:
        """When all units are gathered."""
        views = {
            name: view
            for unit, whole in zip(self.units, self._wholes, strict=True)
            for name, view in zip(unit.layout.names, unit.layout.views(whole.flat), strict=True)
        }
        trained = [name for name, _ in self.module.named_parameters() if name in views]
        return flatten([views[name] for name in trained], self.layout.dtype, self._device)

    def put(
        self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], position: int = 0
    ) -> None:
        if not self._is_all:  # else it is gathered, and need not be put together
            super().put(held, parameters, buffers, position)

    @contextmanager
    def _holding(self, parameters: Tensor | None) -> Iterator[None]:
        """Other parameters are those of all units, as a replica that sheds none has them."""
        if parameters is None:
            yield
            return
        self._bind(parameters)
        try:
            yield
        finally:
            self._bind(self.parameters)

    def _bind(self, flat: Tensor) -> None:
        for unit, binding in zip(self.units, self._bindings, strict=True):
            binding.hold(flat[unit.start : unit.start + unit.length])

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        if self._is_all:
            return Replica.evaluate(self, samples, parameters)
        return super().evaluate(samples, parameters)

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        if not self._is_all:
            return super().state(parameters)
        for unit, whole in zip(self.units, self._wholes, strict=True):
            assert whole.is_there, "the model is gathered before it is looked at"
            check_updated(unit.layout, whole.flat)
        with self._holding(parameters):
            state = self.module.state_dict()
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def _starts_of(parts: Sequence[slice]) -> list[int]:
    """Where each part begins when they lie one after the other, and at the end how long they are."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.stop - part.start)
    return starts


def _flat_of(
    layout: Layout, named: Mapping[str, Tensor], device: torch.device, part: slice | None = None
) -> Tensor:
    return flatten([named[name] for name in layout.names], layout.dtype, device, part)
