"""Passes through the segments that a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.context import BackwardPart, Batch
from paceline.context.boundary import BoundaryValues
from paceline.data.samples import Source
from paceline.model.activations import state_of
from paceline.model.autocast import computing
from paceline.model.cutting.cut import Cut
from paceline.model.engines.inputs import Inputs
from paceline.model.engines.loss_watch import LossWatch
from paceline.model.engines.settings import Settings
from paceline.model.memory import Account
from paceline.model.stages.arranged import arrived, of_wanted, sent
from paceline.model.stages.backward import Gradients
from paceline.model.stages.passes import PassEnvironment, Passes
from paceline.model.stages.stripping import buffers_of


class Store(Protocol):
    """Store of the segments' parameters and gradients: `FlatStore` or `ShardStore`."""

    @property
    def parameters(self) -> Tensor: ...

    def take(self, weights: Sequence[Tensor], found: Gradients) -> None: ...


class SegmentPasses:
    """Forward and backward passes of micro-batches through some segments of a module."""

    def __init__(
        self,
        settings: Settings,
        module: nn.Module,
        cut: Cut,
        held: Sequence[int],
        store: Store,
        inputs: Inputs,
        losses: LossWatch,
        account: Account,
    ) -> None:
        self._task, self._autocast = settings.task, settings.autocast
        self._loss_scale = settings.loss_scale
        self._module = module
        self._cut = cut
        self._store = store
        self._inputs = inputs
        self._losses = losses
        self._account = account
        self._passes = {number: self._passes_of(number) for number in held}
        self._wanted: dict[int, tuple[tuple[bool, ...], tuple[bool, ...]]] = {}
        """For each segment: which of its inputs and which of its outputs need gradients."""

    def _passes_of(self, number: int) -> Passes:
        named = dict(self._module.named_parameters())
        own = (named[name] for name in self._cut.segments[number].parameters)
        weights = [parameter for parameter in own if parameter.requires_grad]
        around = PassEnvironment(
            account=self._account,
            recomputes=self._task.recompute,
            state=lambda: [self._store.parameters, *state_of(self._module)],
            buffers=lambda: buffers_of(self._module, self._cut, [number]),
            context=lambda: computing(self._autocast),
        )
        return Passes(self._cut.compute(self._module, number), weights, self._take, around)

    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: BoundaryValues
    ) -> BoundaryValues | Tensor:
        """Return a segment's outputs for a micro-batch. The last segment returns the loss.

        `part` identifies the micro-batch among those in flight.
        """
        is_last = segment + 1 == len(self._cut.segments)
        takes_arguments = self._cut.needs_arguments(segment)
        content: Any = None
        if is_last or takes_arguments:
            content = self._inputs.fetch(batch, samples, batch.part)
        else:
            self._inputs.seed_part(batch, batch.part)
        if given.chance is not None:
            torch.default_generator.set_state(given.chance)
        arguments = self._cut.arguments(self._task, self._module, content) if takes_arguments else None
        if not self._module.training:
            self._module.train()
        loss_of = self._loss_of(content) if is_last else None
        needed = content if is_last else arguments
        given = given._replace(tensors=tuple(arrived(given.tensors, self._cut.reductions_before(segment))))
        before = self._passes.get(segment - 1)
        stays = () if before is None else before.bytes_of(batch.count).stays
        made = self._passes[segment].forward(
            part,
            arguments,
            given,
            loss_of,
            batch.weight * self._scale,
            samples=batch.count,
            content=needed,
            shared=self._cut.shared(segment, stays),
        )
        if not isinstance(made, BoundaryValues):
            self._wanted[segment] = given.wanted, ()
            return made
        self._wanted[segment] = given.wanted, made.wanted
        together = self._cut.segments[segment].reductions
        return made._replace(tensors=tuple(sent(made.tensors, together, self._cut.size)))

    def _loss_of(self, content: Any) -> Callable[[Any], Tensor]:
        """Return a function that computes the loss from the output of the last segment."""
        of_outputs = self._cut.loss_of(self._task, content)

        def loss_of(made: Any) -> Tensor:
            loss = of_outputs(made)
            self._losses.look(loss, () if self._cut.has_loss else made, content)
            return loss if self._loss_scale is None else loss.float()

        return loss_of

    @property
    def _scale(self) -> float:
        return 1.0 if self._loss_scale is None else self._loss_scale.value

    def _take(self, weights: Sequence[Tensor], found: Gradients) -> None:
        if self._loss_scale is not None:
            found = [None if each is None else each / self._scale for each in found]
        self._store.take(weights, found)

    def backward(
        self, segment: int, part: int, given: Sequence[Tensor], way: BackwardPart = "both"
    ) -> Sequence[Tensor]:
        """Return the gradients of the inputs that need one. Add the gradients of the weights to the store."""
        passes = self._passes[segment]
        if way == "weights":
            passes.backward_weights(part)
            return ()
        run = passes.backward if way == "both" else passes.backward_inputs
        return self._sent_gradients(segment, run(part, self._arrived_gradients(segment, given)))

    def _arrived_gradients(self, segment: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        if not gradients:
            return []
        behind = self._cut.gradient_reductions_after(segment)
        return arrived(gradients, of_wanted(behind, self._wanted[segment][1]))

    def _sent_gradients(self, segment: int, gradients: list[Tensor]) -> list[Tensor]:
        if not gradients:
            return gradients
        before = self._cut.segments[segment].gradient_reductions
        return sent(gradients, of_wanted(before, self._wanted[segment][0]), self._cut.size)

    @property
    def in_flight(self) -> int:
        """Number of micro-batches with stored activations, counted once for each segment."""
        return sum(passes.in_flight for passes in self._passes.values())
