"""A replica that holds some segments of the model only."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import Batch
from paceline.context.crossing import Crossing
from paceline.errors import ConfigurationError
from paceline.replica.activations import state_of
from paceline.replica.autocast import computing
from paceline.replica.blueprint import Blueprint
from paceline.replica.layout import flatten
from paceline.replica.pieces.arranged import arrived, of_wanted, sent
from paceline.replica.pieces.backward import Gradients
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.passes import Around, Passes
from paceline.replica.pieces.units import Passing
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples, Source

__all__ = ["PartReplica", "stripped"]


class PartReplica(Replica):
    """The parameters of the other segments take no memory here.

    A reporter has a whole replica to evaluate with, whose parameters take memory from `put` to the next batch only.
    """

    _shown: Passing | None = None

    def __init__(
        self,
        whole: Replica | Blueprint,
        cut: Cut,
        held: Sequence[int],
        *,
        keeps_whole: bool,
        worker: int = 0,
        is_bare: bool = False,
    ) -> None:
        """`is_bare`: see `Replica`; of a blueprint only."""
        self._whole = whole if keeps_whole and isinstance(whole, Replica) else None
        self._cut = cut
        self.held = tuple(held)
        module = stripped(whole.module, cut, held)
        # What is drawn is what that worker would draw with the whole model.
        super().__init__(whole.task, module, is_bare=is_bare, **(whole.identity | {"rank": worker}))
        if cut.shares is not None:
            self.layout = replace(self.layout, within=cut.within(whole.layout))
        if isinstance(whole, Replica):
            self._take_place_of(whole)
        trainable = (parameter for parameter in module.parameters() if parameter.requires_grad)
        self._numbers = {id(parameter): number for number, parameter in enumerate(trainable)}
        self._passes = {number: self._passes_of(number) for number in held}
        self._wanted: dict[int, tuple[tuple[bool, ...], tuple[bool, ...]]] = {}
        """Of which values before and behind each segment gradients go back."""

    def _hide_whole(self) -> None:
        """The run has looked at the model, if it has: its memory is given up."""
        if self._shown is not None:
            self._shown.go()

    def _take_place_of(self, whole: Replica) -> None:
        # Whoever still has the other replica keeps no memory by it.
        whole.gradient.untyped_storage().resize_(0)
        self._shown = Passing(whole.parameters)
        self._shown.go()
        self._accounting.take_over(whole.give_account(), self)
        if whole.updates.kept is not None:
            self.updates.kept = whole.updates.kept.laid_out(self.layout)

    @property
    def whole(self) -> Replica | None:
        return self._whole

    def _passes_of(self, number: int) -> Passes:
        named = dict(self.module.named_parameters())
        own = (named[name] for name in self._cut.segments[number].parameters)
        weights = [parameter for parameter in own if parameter.requires_grad]
        around = Around(
            account=self._accounting.account,
            recomputes=self.task.recompute,
            state=lambda: [self.parameters, *state_of(self.module)],
            buffers=lambda: _buffers(self.module, self._cut, [number]),
            context=lambda: computing(self._autocast),
        )
        return Passes(self._cut.compute(self.module, number), weights, self._take, around)

    def _take(self, weights: Sequence[Tensor], found: Gradients) -> None:
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                self._gradient.add(self._numbers[id(weight)], gradient)

    # Passes

    def begin_batch(self) -> None:
        """Before the first micro-batch of a step."""
        self._hide_whole()
        self._binding.refresh()
        self._gradient.clear()

    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: Crossing
    ) -> Crossing | Tensor:
        """A segment's outputs for a micro-batch, which is `part` of its batch; of the last segment, the loss."""
        is_last = segment + 1 == len(self._cut.segments)
        takes_arguments = self._cut.needs_arguments(segment)
        content: Any = None
        if is_last or takes_arguments:
            content = self.fetch(batch, samples, part)
        else:
            self.seed_part(batch, part)
        if given.chance is not None:
            torch.default_generator.set_state(given.chance)
        arguments = self._cut.arguments(self.task, self.module, content) if takes_arguments else None
        if not self.module.training:
            self.module.train()
        loss_of = self._cut.loss_of(self.task, content) if is_last else None
        needed = content if is_last else arguments
        given = given._replace(tensors=tuple(arrived(given.tensors, self._cut.joined_before(segment))))
        before = self._passes.get(segment - 1)
        stays = () if before is None else before.bytes_of(batch.count).stays
        made = self._passes[segment].forward(
            part,
            arguments,
            given,
            loss_of,
            batch.weight,
            samples=batch.count,
            content=needed,
            shared=self._cut.shared(segment, stays),
        )
        if not isinstance(made, Crossing):
            self._wanted[segment] = given.wanted, ()
            return made
        self._wanted[segment] = given.wanted, made.wanted
        sums = self._cut.segments[segment].sums
        return made._replace(tensors=tuple(sent(made.tensors, sums, self._cut.size)))

    def backward(self, segment: int, part: int, given: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs that want one; those of the weights are added to `gradient`."""
        return self._sent_back(segment, self._passes[segment].backward(part, self._come_back(segment, given)))

    def backward_inputs(self, segment: int, part: int, given: Sequence[Tensor]) -> list[Tensor]:
        """The first part of it: the gradients of the inputs."""
        given = self._come_back(segment, given)
        return self._sent_back(segment, self._passes[segment].backward_inputs(part, given))

    def _come_back(self, segment: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        if not gradients:
            return []
        behind = self._cut.gradients_joined_behind(segment)
        return arrived(gradients, of_wanted(behind, self._wanted[segment][1]))

    def _sent_back(self, segment: int, gradients: list[Tensor]) -> list[Tensor]:
        if not gradients:
            return gradients
        before = self._cut.segments[segment].gradient_sums
        return sent(gradients, of_wanted(before, self._wanted[segment][0]), self._cut.size)

    def backward_weights(self, segment: int, part: int) -> None:
        """The second part of it: those of the weights."""
        self._passes[segment].backward_weights(part)

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations are kept, each once for each segment."""
        return sum(passes.in_flight for passes in self._passes.values())

    def end_batch(self) -> None:
        """After the last micro-batch of a step: see whether the gradient may be used."""
        if self.layout.length:
            self._gradient.check()

    def place_of(self, name: str) -> slice:
        """Where a parameter lies in `parameters` and `gradient`."""
        number = self.layout.names.index(name)
        return slice(self.layout.offsets[number], self.layout.offsets[number + 1])

    # Updates

    def apply(
        self,
        shard: slice | None = None,
        norm: float | None = None,
        *,
        advance: bool = True,
        of: Sequence[Batch] = (),
        step: int = 0,
    ) -> None:
        if self.layout.length:
            super().apply(shard, norm, advance=advance, of=of, step=step)

    # The run's model, put together

    def held_parameters(self) -> Tensor:
        """The parameters of the held segments, flat, in the order of the whole model."""
        return self.parameters

    def held_buffers(self) -> list[Tensor]:
        """The buffers of the held segments, one flat tensor per dtype."""
        return _flat_by_dtype(_buffers(self.module, self._cut, self.held))

    def put(
        self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], position: int = 0
    ) -> None:
        """Write the parameters and buffers of these segments into the whole replica, by name."""
        assert self._whole is not None, "only a reporter puts a model together"
        assert self._shown is not None
        self._shown.come()
        cut = self._cut.at(position)
        names = cut.parameters(held)
        layout = self._whole.layout
        at = 0
        for name, view in zip(layout.names, layout.views(self._whole.parameters), strict=True):
            if name in names:
                count = cut.count(name, view.shape)
                cut.write(name, view, parameters[at : at + count])
                at += count
        for group, flat in zip(
            _by_dtype(_buffers(self._whole.module, self._cut, held)), buffers, strict=True
        ):
            at = 0
            for buffer in group:
                buffer.copy_(flat[at : at + buffer.numel()].view(buffer.shape))
                at += buffer.numel()

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        assert self._whole is not None, "only a reporter evaluates"
        return self._whole.evaluate(samples, parameters)

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        assert self._whole is not None, "only a reporter has the whole state"
        return self._whole.state(parameters)


def stripped(module: nn.Module, cut: Cut, held: Sequence[int]) -> nn.Module:
    """A copy of a module in which parameters of others have no memory and are not trained, and others are parts."""
    kept = cut.parameters(held)
    changed: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        if name not in kept:
            blank = torch.empty_like(parameter, device="meta")
            changed[id(parameter)] = nn.Parameter(blank, requires_grad=False)
        elif (part := cut.part(name, parameter.detach())).shape != parameter.shape:
            changed[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
    try:
        return copy.deepcopy(module, changed)
    except RuntimeError as error:
        bound = "must be one that can be copied, where it is cut"
        remedy = "use torch.nn.utils.parametrizations instead of torch.nn.utils.weight_norm and the like"
        raise ConfigurationError("model", bound, type(module).__name__, remedy) from error


def _buffers(module: nn.Module, cut: Cut, held: Sequence[int]) -> list[Tensor]:
    named = dict(module.named_buffers())
    names = dict.fromkeys(name for number in held for name in cut.segments[number].buffers)
    return [named[name] for name in names]


def _by_dtype(buffers: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault(buffer.dtype, []).append(buffer)
    return list(groups.values())


def _flat_by_dtype(buffers: Sequence[Tensor]) -> list[Tensor]:
    return [flatten(group, group[0].dtype, group[0].device) for group in _by_dtype(buffers)]
