"""Parameters and gradients of a rank that shares its segments with other ranks: one shard of each unit.

The parameters of a unit are complete between `gather` and `free`. Without `frees_parameters`, the store has all
parameters, unit by unit, and the rank updates its shard in place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.model.activations import storage_of
from paceline.model.binding import Binding
from paceline.model.engines.unit_gradient import UnitGradient
from paceline.model.finite import check_updated, not_finite_in
from paceline.model.holding import Holding
from paceline.model.layout import Layout, flatten
from paceline.model.memory import Account
from paceline.model.stages.backward import Gradients
from paceline.model.stages.resizable import ResizableBuffer


class ShardStore:
    """Shards of the trainable parameters of a module. Only this rank's shards are copied.

    `parameters` and `gradient` are this rank's shard of each unit, or all parameters if they are not freed.
    """

    def __init__(
        self,
        module: nn.Module,
        holding: Holding,
        device: torch.device,
        account: Account,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`values` are the parameters by name. None to use those of the module."""
        self._module = module
        self._device = device
        self._account = account
        self._layout, self.units = holding.layout, holding.units
        self._rank, self.frees_parameters = holding.shard, holding.frees_parameters
        self._stored_bytes = holding.parameter_bytes
        self.not_finite: str | None = None
        self._own_parts = [unit.own(holding.shard) for unit in self.units]
        self._starts = _starts_of(self._own_parts)
        self._unit_of = {name: place for place, unit in enumerate(self.units) for name in unit.group.names}
        self.gradient = torch.zeros(self._starts[-1], dtype=holding.reduction_dtype, device=device)
        self._gradients = [UnitGradient(unit.layout) for unit in self.units]
        self._begun: set[int] = set()  # units with a gradient in this batch
        self._under_way: dict[int, int] = {}  # bytes of full gradients being reduced, by unit
        self._in_batch = False
        named = dict(module.named_parameters())
        self._bindings = [
            Binding(unit.layout, [named[name] for name in unit.layout.names], device) for unit in self.units
        ]
        self._places = {
            id(named[name]): (place, number)
            for place, unit in enumerate(self.units)
            for number, name in enumerate(unit.layout.names)
        }
        self.places = {key: place for key, (place, _) in self._places.items()}
        """The unit of each parameter, by `id`, as its place in `units`."""
        self._copy(named if values is None else values)
        self._book()

    def _copy(self, values: Mapping[str, Tensor]) -> None:
        """Copy the parameters unit by unit. Only this rank's shard exists twice at any time."""
        if not self.frees_parameters:
            self._hold(_flat_of(self._layout, values, self._device))
            return
        self.parameters = torch.empty(self._starts[-1], dtype=self._layout.dtype, device=self._device)
        for unit, start, stop in zip(self.units, self._starts, self._starts[1:], strict=False):
            self.parameters[start:stop] = _flat_of(unit.layout, values, self._device, unit.shards[self._rank])
        self._wholes = []
        for unit, binding in zip(self.units, self._bindings, strict=True):
            whole = torch.empty(unit.length, dtype=self._layout.dtype, device=self._device)
            binding.hold(whole)
            self._wholes.append(ResizableBuffer(whole))
            self._wholes[-1].free()

    def _hold(self, flat: Tensor) -> None:
        """Use `flat` as the storage of all parameters."""
        self.parameters = flat
        parts = [flat[unit.start : unit.start + unit.length] for unit in self.units]
        self._wholes = [ResizableBuffer(part) for part in parts]
        for binding, part in zip(self._bindings, parts, strict=True):
            binding.hold(part)

    # Memory

    def storages(self) -> dict[int, int]:
        """Return the unit of each storage that is freed between uses, as its place in `units`."""
        wholes = enumerate(self._wholes) if self.frees_parameters else ()
        return {storage_of(whole.flat): place for place, whole in wholes if whole.flat.numel()}

    def memory(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return parameters and gradient for a part of the layout. The part must be within this rank's shard of one
        unit.
        """
        place = bisect_right([unit.start for unit in self.units], part.start) - 1
        while not self._own_parts[place].start <= part.start < self._own_parts[place].stop:
            place -= 1  # a unit without parameters has the same offset as the next unit
        shift = self._starts[place] - self._own_parts[place].start
        here = slice(part.start + shift, part.stop + shift)
        return self.parameters[here if self.frees_parameters else part], self.gradient[here]

    def is_at(self, parameters: Tensor | None, gradient: Tensor | None) -> bool:
        """Return whether the parameters are already in this memory. Gradients are never moved."""
        return parameters is None or parameters.data_ptr() == self.parameters.data_ptr()

    def place(self, parameters: Tensor | None, gradient: Tensor | None) -> None:
        """Move the parameters into other memory, with the values that they have there."""
        assert parameters is not None, "gradients are never moved"
        if self.frees_parameters:
            self.parameters = parameters
        else:
            self._hold(parameters)

    def _book(self) -> None:
        """Record the memory in use now."""
        gathered = sum(whole.nbytes for whole in self._wholes) if self.frees_parameters else 0
        self._account.hold("parameters", self._stored_bytes + gathered)
        found = sum(gradient.nbytes for gradient in self._gradients)
        self._account.hold("gradients", self.gradient.nbytes + found + sum(self._under_way.values()))

    def gather(self, place: int) -> Tensor:
        """Allocate memory for all parameters of a unit and return it, with this rank's shard filled in."""
        whole = self._wholes[place].allocate()
        if self._in_batch:
            self._book()
        if self.frees_parameters:
            shard = self.units[place].shards[self._rank]
            whole[shard].copy_(self.parameters[self._starts[place] : self._starts[place + 1]])
        return whole

    def refresh(self, place: int) -> None:
        """Update copies in other dtypes after the shards of the other ranks have arrived."""
        self._bindings[place].refresh()

    def _refresh_kept(self) -> None:
        """Copy the parameters into parameters of other dtypes: other ranks may have updated them in shared memory."""
        if not self.frees_parameters:
            for binding in self._bindings:
                binding.refresh()

    def free(self, place: int) -> None:
        """Free the shards of a unit that other ranks own."""
        if self.frees_parameters:
            self._wholes[place].free()
            self._book()

    # Gradients of segments

    def begin_batch(self) -> None:
        self._refresh_kept()
        for place in range(len(self.units)):
            self.free(place)
        self._in_batch = True
        self._begun.clear()
        self.not_finite = None

    def take(self, weights: Sequence[Tensor], found: Gradients) -> None:
        """Add the gradients of some parameters."""
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                place, number = self._places[id(weight)]
                self._gradients[place].add(number, gradient)
        self._book()

    def end_batch(self) -> None:
        """Check that every unit was reduced. Each unit's gradient was checked for finite values before that."""
        assert len(self._begun) == len(self.units), "the gradient of every unit must be summed in every batch"
        self._in_batch = False  # gathers after this point are for evaluation or saving

    def unit_gradient(self, place: int, into: Tensor | None = None) -> Tensor:
        """Return the full gradient of a unit, accumulated on this rank since the last call."""
        layout = self.units[place].layout
        flat = torch.empty(layout.length, dtype=layout.dtype, device=self._device) if into is None else into
        self._gradients[place].write(flat)
        self._under_way[place] = flat.nbytes if into is None else 0
        self._book()
        if layout.length and self.not_finite is None:
            self.not_finite = not_finite_in(layout, flat, range(len(layout.names)))
        return flat

    def gradients_of(self, names: Sequence[str]) -> list[Tensor]:
        """Return the gradients of whole parameters, before ranks exchange them."""
        found = []
        for name in names:
            place = self._unit_of[name]
            gradient = self._gradients[place].of(self.units[place].layout.names.index(name))
            found += [] if gradient is None else [gradient]
        return found

    def gradient_space(self, place: int) -> Tensor | None:
        """Return the memory for this rank's shard of a unit's gradient; None if this batch has already written to
        it.
        """
        return None if place in self._begun else self._own_part(place)

    def _own_part(self, place: int) -> Tensor:
        return self.gradient[self._starts[place] : self._starts[place + 1]]

    def keep_gradient(self, place: int, own: Tensor) -> None:
        """Add this rank's shard of a unit's gradient, summed over all ranks."""
        before = self._own_part(place)
        if place in self._begun:
            before.add_(own)
        elif own.data_ptr() != before.data_ptr():
            before.copy_(own)
        self._begun.add(place)
        self._under_way.pop(place, None)
        self._book()

    # Evaluation

    def laid_out(self) -> Tensor:
        """Return all parameters, in the order of the layout. All units must be gathered."""
        return torch.cat([whole.flat for whole in self._wholes]) if self.frees_parameters else self.parameters

    def all_parameters(self) -> Tensor:
        """Return all parameters, in the order of the whole model. All units must be gathered."""
        views = {
            name: view
            for unit, whole in zip(self.units, self._wholes, strict=True)
            for name, view in zip(unit.layout.names, unit.layout.views(whole.flat), strict=True)
        }
        trained = [name for name, _ in self._module.named_parameters() if name in views]
        return flatten([views[name] for name in trained], self._layout.dtype, self._device)

    @contextmanager
    def bound(self, parameters: Tensor | None) -> Iterator[None]:
        """Bind other parameters to the module temporarily. They cover all units."""
        if parameters is None:
            self._refresh_kept()
            yield
            return
        for unit, binding in zip(self.units, self._bindings, strict=True):
            binding.hold(parameters[unit.start : unit.start + unit.length])
        try:
            yield
        finally:
            for whole, binding in zip(self._wholes, self._bindings, strict=True):
                binding.hold(whole.flat)

    def check_updated(self, parameters: Tensor | None) -> None:
        """Raise an error if parameters are not finite. All units must be gathered."""
        for unit, whole in zip(self.units, self._wholes, strict=True):
            assert whole.is_allocated, "the model must be gathered before it is inspected"
            check_updated(unit.layout, whole.flat)


def _starts_of(parts: Sequence[slice]) -> list[int]:
    """Return the offset of each shard when the shards are concatenated, followed by the total length."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.stop - part.start)
    return starts


def _flat_of(
    layout: Layout, named: Mapping[str, Tensor], device: torch.device, part: slice | None = None
) -> Tensor:
    return flatten([named[name] for name in layout.names], layout.dtype, device, part)
