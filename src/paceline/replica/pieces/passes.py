"""Segments computed one by one: forward, and backward in one or in its two parts.

With recomputation a forward pass leaves only what it was given. Its backward pass computes it again first, with the
same random numbers and buffers, and goes back then: the same bits, for the memory of one micro-batch and the time of
one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from paceline.context.crossing import Crossing
from paceline.replica.activations import Activations, refuses_counting
from paceline.replica.memory import Account, Ledger
from paceline.replica.moment import Moment
from paceline.replica.pieces.backward import Gradients, Weights, gradients, input_gradients
from paceline.replica.pieces.parts import Arguments, Compute

__all__ = ["Around", "PassBytes", "Passes"]


class _Given(NamedTuple):
    """What a forward pass of one micro-batch is given: see `Passes.forward`."""

    arguments: Arguments | None
    crossing: Crossing
    loss_of: Callable[[Any], Tensor] | None
    weight: float
    samples: int
    content: Any
    shared: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a segment's passes have around them."""

    account: Account
    """Where activations are written down."""
    recomputes: bool = False
    state: Callable[[], Sequence[Tensor]] = list
    """Parameters and buffers of the module: they are no activations."""
    buffers: Callable[[], Sequence[Tensor]] = list
    """Those of the segment."""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """In which a forward pass is computed."""

    @classmethod
    def nothing(cls) -> Around:
        return cls(account=Ledger().account())


@dataclass(slots=True)
class _Kept:
    """What a forward pass leaves for the backward pass of the same micro-batch."""

    inputs: list[Tensor]
    """Those that want a gradient."""
    ends: list[GradientEdge]
    """Where the gradients of the outputs go in. The outputs need not stay."""
    begun: list[Tensor]
    """These gradients, if nobody gives them: that of a loss is 1."""
    weights: Weights | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a forward pass leaves that will be computed again."""

    given: _Given
    moment: Moment


@dataclass(frozen=True, slots=True)
class PassBytes:
    """The memory of a forward pass of so many samples."""

    given: int = 0
    """What it is given: kept where it will be computed again."""
    made: int = 0
    """What it leaves for its backward pass besides that."""
    kept: int = 0
    """What it leaves where it will not be computed again. Not all that it is given is needed then."""
    stays: tuple[bool, ...] = ()
    """Of each value that goes to the segment after: whether it is among what is left here. If that segment is on the
    same rank, it does not count there again."""


class Passes:
    """One segment's passes. Its micro-batches may be under way at the same time."""

    def __init__(
        self,
        compute: Compute,
        weights: Sequence[Tensor],
        take: Callable[[Sequence[Tensor], Gradients], None],
        around: Around | None = None,
    ) -> None:
        """`take` is given the weights and their gradients, whenever some are known."""
        self._compute = compute
        self._weights = weights
        self._take = take
        self._around = around or Around.nothing()
        self._kept: dict[int, _Kept | _Begun] = {}
        self._bytes: dict[int, PassBytes] = {}

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations are kept."""
        return len(self._kept)

    def bytes_of(self, samples: int) -> PassBytes:
        """The memory of a forward pass of so many samples; nothing is known before the first of them."""
        return self._bytes.get(samples, PassBytes())

    def forward(
        self,
        micro: int,
        arguments: Arguments | None,
        crossing: Crossing,
        loss_of: Callable[[Any], Tensor] | None = None,
        weight: float = 1.0,
        *,
        samples: int = 0,
        content: Any = None,
        shared: Sequence[bool] = (),
    ) -> Crossing | Tensor:
        """What goes to the segment after; of the last one (`loss_of` is given) the loss.

        `weight` is that of the micro-batch's loss in the batch's, which has so many `samples`. `content` is what
        arguments and loss are made of, where they are needed. `shared` says of each value that crosses the cut before
        whether this rank keeps it anyway.
        """
        given = _Given(arguments, crossing, loss_of, weight, samples, content, tuple(shared))
        around = self._around
        moment = Moment(around.buffers) if around.recomputes else None
        before = torch.default_generator.get_state()
        outputs, kept = self._forward_counted(given)
        drew = given.crossing.chance is not None or not torch.equal(
            before, torch.default_generator.get_state()
        )
        nbytes = self._bytes[given.samples]
        if moment is None:
            self._kept[micro] = kept
            around.account.add("activations", nbytes.kept)
        else:
            moment.end()
            self._kept[micro] = _Begun(given, moment)
            around.account.add("activations", nbytes.given)
            around.account.touch("activations", nbytes.made)
        if given.loss_of is not None:
            return outputs[0].detach()
        tensors = tuple(output.detach().contiguous() for output in outputs)
        wanted = tuple(output.requires_grad for output in outputs)
        return Crossing(tensors, wanted, torch.default_generator.get_state() if drew else None)

    def _forward_counted(self, given: _Given) -> tuple[list[Tensor], _Kept]:
        """What it leaves is counted the first time that there are so many samples."""
        if given.samples not in self._bytes:
            return self._count(given)
        outputs, kept = self._forward(given)
        kept.nbytes = self._bytes[given.samples].kept
        return outputs, kept

    def _count(self, given: _Given) -> tuple[list[Tensor], _Kept]:
        shared = list(compress(given.crossing.tensors, given.shared))
        counted, moment = Activations([*self._around.state(), *shared]), Moment(self._around.buffers)
        try:
            with counted.counting():
                outputs, kept = self._forward(given)
        except RuntimeError as error:
            if not refuses_counting(error):
                raise
            counted.let_go()
            moment.rewind()
            outputs, kept = self._forward(given)
        counted.note(kept.inputs)
        kept.nbytes = counted.nbytes
        held = [given.crossing.tensors, given.content]
        again = Activations([*self._around.state(), *shared])
        again.note(held)
        stays = (again if self._around.recomputes else counted).has
        leaving = () if given.loss_of is not None else tuple(stays(output) for output in outputs)
        counted.note(held)
        given_bytes = again.let_go()
        made = counted.let_go() - given_bytes
        self._bytes[given.samples] = PassBytes(given_bytes, made, kept.nbytes, leaving)
        return outputs, kept

    def _forward(self, given: _Given) -> tuple[list[Tensor], _Kept]:
        crossing = given.crossing
        pairs = zip(crossing.tensors, crossing.wanted, strict=True)
        values = [tensor.detach().requires_grad_() if wanted else tensor for tensor, wanted in pairs]
        with torch.enable_grad(), self._around.context():
            made = self._compute(given.arguments, values)
            outputs = [given.loss_of(made)] if given.loss_of is not None else list(made)
        ends, begun = [output for output in outputs if output.requires_grad], list[Tensor]()
        if given.loss_of is not None:
            ends = [outputs[0] * given.weight]
            begun = [torch.ones_like(ends[0])]
        inputs = [value for value, wanted in zip(values, crossing.wanted, strict=True) if wanted]
        return outputs, _Kept(inputs=inputs, ends=[get_gradient_edge(end) for end in ends], begun=begun)

    def _computed(self, found: _Kept | _Begun) -> _Kept:
        """What a forward pass left; it is computed again, if it was told to leave nothing."""
        if isinstance(found, _Kept):
            return found
        nbytes = self._bytes[found.given.samples]
        self._around.account.add("activations", nbytes.made)
        with found.moment.again():
            _, kept = self._forward(found.given)
        kept.nbytes = nbytes.given + nbytes.made
        return kept

    def backward(self, micro: int, given: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs that want one; those of the weights are taken."""
        kept = self._computed(self._kept.pop(micro))
        found = gradients(kept.ends, given or kept.begun, [*kept.inputs, *self._weights])
        self._take(self._weights, found[len(kept.inputs) :])
        self._around.account.free("activations", kept.nbytes)
        return _filled(kept.inputs, found[: len(kept.inputs)])

    def backward_inputs(self, micro: int, given: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the inputs alone."""
        kept = self._kept[micro] = self._computed(self._kept[micro])
        found, kept.weights = input_gradients(kept.ends, given or kept.begun, kept.inputs, self._weights)
        kept.ends = []
        return _filled(kept.inputs, found)

    def backward_weights(self, micro: int) -> None:
        """The gradients of the weights, after those of the inputs."""
        kept = self._kept.pop(micro)
        assert isinstance(kept, _Kept), "the gradients of the inputs come first"
        assert kept.weights is not None, "the gradients of the inputs come first"
        self._take(self._weights, kept.weights.gradients())
        self._around.account.free("activations", kept.nbytes)


def _filled(inputs: Sequence[Tensor], found: Gradients) -> list[Tensor]:
    """A gradient for each input: zero where nothing depends on it."""
    return [
        torch.zeros_like(value) if gradient is None else gradient.contiguous()
        for value, gradient in zip(inputs, found, strict=True)
    ]
