"""Segments computed one by one: forward, and backward in one or in its two parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.context.crossing import Crossing
from paceline.replica.pieces.backward import Gradients, Weights, gradients, input_gradients
from paceline.replica.pieces.parts import Arguments, Compute

__all__ = ["Passes"]


@dataclass(slots=True)
class _Kept:
    """What a forward pass leaves for the backward pass of the same micro-batch."""

    inputs: list[Tensor]
    """Those that want a gradient."""
    outputs: list[Tensor]
    """Those that have one to give."""
    weights: Weights | None = None


class Passes:
    """One segment's passes. Its micro-batches may be under way at the same time."""

    def __init__(
        self, compute: Compute, weights: Sequence[Tensor], take: Callable[[Sequence[Tensor], Gradients], None]
    ) -> None:
        """`take` is given the weights and their gradients, whenever some are known."""
        self._compute = compute
        self._weights = weights
        self._take = take
        self._kept: dict[int, _Kept] = {}

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations are kept."""
        return len(self._kept)

    def forward(
        self,
        micro: int,
        arguments: Arguments | None,
        given: Crossing,
        loss_of: Callable[[Any], Tensor] | None = None,
        weight: float = 1.0,
    ) -> Crossing | Tensor:
        """What goes to the segment after; of the last one (`loss_of` is given) the loss.

        `weight` is that of the micro-batch's loss in the batch's.
        """
        pairs = zip(given.tensors, given.wanted, strict=True)
        values = [tensor.detach().requires_grad_() if wanted else tensor for tensor, wanted in pairs]
        before = torch.default_generator.get_state()
        with torch.enable_grad():
            made = self._compute(arguments, values)
            outputs = [loss_of(made)] if loss_of is not None else list(made)
        drew = given.chance is not None or not torch.equal(before, torch.default_generator.get_state())
        wanted = tuple(output.requires_grad for output in outputs)
        self._kept[micro] = _Kept(
            inputs=[value for value, is_wanted in zip(values, given.wanted, strict=True) if is_wanted],
            outputs=[output for output in outputs if output.requires_grad],
        )
        if loss_of is not None:
            self._kept[micro].outputs = [outputs[0] * weight]
            return outputs[0].detach()
        tensors = tuple(output.detach().contiguous() for output in outputs)
        return Crossing(tensors, wanted, torch.default_generator.get_state() if drew else None)

    def backward(self, micro: int, given: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs that want one; those of the weights are taken."""
        kept = self._kept.pop(micro)
        found = gradients(kept.outputs, _begun(kept, given), [*kept.inputs, *self._weights])
        self._take(self._weights, found[len(kept.inputs) :])
        return _filled(kept.inputs, found[: len(kept.inputs)])

    def backward_inputs(self, micro: int, given: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs alone."""
        kept = self._kept[micro]
        found, kept.weights = input_gradients(kept.outputs, _begun(kept, given), kept.inputs, self._weights)
        kept.outputs = []
        return _filled(kept.inputs, found)

    def backward_weights(self, micro: int) -> None:
        """The gradients of the weights, after those of the inputs."""
        weights = self._kept.pop(micro).weights
        assert weights is not None, "the gradients of the inputs come first"
        self._take(self._weights, weights.gradients())


def _begun(kept: _Kept, given: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients of the outputs. That of a loss is 1, and nobody gives it."""
    return given or [torch.ones_like(output) for output in kept.outputs]


def _filled(inputs: Sequence[Tensor], found: Gradients) -> list[Tensor]:
    """A gradient for each input: zero where nothing depends on it."""
    return [
        torch.zeros_like(value) if gradient is None else gradient.contiguous()
        for value, gradient in zip(inputs, found, strict=True)
    ]
