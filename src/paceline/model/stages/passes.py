"""Forward and backward passes of a single segment. The backward pass runs in one call or in two.

With recomputation, a forward pass stores only its inputs. The backward pass first runs the forward pass again, with the
same random numbers and buffers. Results are bit-identical. Only one micro-batch's activations are in memory at a time,
at the cost of one more forward pass.
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

from paceline.context.boundary import BoundaryValues
from paceline.model.activations import Activations, refuses_counting
from paceline.model.cutting.parts import Arguments, Compute
from paceline.model.memory import Account, Ledger
from paceline.model.replay_point import ReplayPoint
from paceline.model.stages.backward import Gradients, Weights, gradients, input_gradients


class _Given(NamedTuple):
    """Inputs of a forward pass of one micro-batch: see `Passes.forward`."""

    arguments: Arguments | None
    crossing: BoundaryValues
    loss_of: Callable[[Any], Tensor] | None
    weight: float
    samples: int
    content: Any
    shared: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnvironment:
    """Environment of a segment's passes."""

    account: Account
    """Account in which activations are recorded."""
    recomputes: bool = False
    state: Callable[[], Sequence[Tensor]] = list
    """Return the parameters and buffers of the module. They do not count as activations."""
    buffers: Callable[[], Sequence[Tensor]] = list
    """Return the buffers of the segment."""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Context manager for forward passes."""

    @classmethod
    def nothing(cls) -> PassEnvironment:
        return cls(account=Ledger().account())


@dataclass(slots=True)
class _Kept:
    """What a forward pass stores for the backward pass of the same micro-batch."""

    inputs: list[Tensor]
    """Inputs that need a gradient."""
    ends: list[GradientEdge]
    """Gradient edges of the outputs. The output tensors can be freed."""
    begun: list[Tensor]
    """Gradients of the outputs if the caller gives none: 1 for a loss."""
    weights: Weights | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a forward pass stores if it will be recomputed."""

    given: _Given
    moment: ReplayPoint


@dataclass(frozen=True, slots=True)
class PassBytes:
    """Memory of a forward pass of a given number of samples."""

    given: int = 0
    """Bytes of its inputs. They are stored if the pass will be recomputed."""
    made: int = 0
    """Further bytes that it stores for its backward pass."""
    kept: int = 0
    """Bytes that it stores without recomputation. Without recomputation, some inputs may not be stored."""
    stays: tuple[bool, ...] = ()
    """For each output: whether it is among the stored tensors. If the next segment is on the same rank, it does not
    count the output again.
    """


class Passes:
    """Passes of one segment. Several micro-batches may be in flight at the same time."""

    def __init__(
        self,
        compute: Compute,
        weights: Sequence[Tensor],
        take: Callable[[Sequence[Tensor], Gradients], None],
        around: PassEnvironment | None = None,
    ) -> None:
        """`take` is called with the weights and their gradients whenever some are computed."""
        self._compute = compute
        self._weights = weights
        self._take = take
        self._around = around or PassEnvironment.nothing()
        self._kept: dict[int, _Kept | _Begun] = {}
        self._bytes: dict[int, PassBytes] = {}

    @property
    def in_flight(self) -> int:
        """Number of micro-batches with stored activations."""
        return len(self._kept)

    def bytes_of(self, samples: int) -> PassBytes:
        """Return the memory of a forward pass of `samples` samples; zeros before the first such pass."""
        return self._bytes.get(samples, PassBytes())

    def forward(
        self,
        micro: int,
        arguments: Arguments | None,
        crossing: BoundaryValues,
        loss_of: Callable[[Any], Tensor] | None = None,
        weight: float = 1.0,
        *,
        samples: int = 0,
        content: Any = None,
        shared: Sequence[bool] = (),
    ) -> BoundaryValues | Tensor:
        """Return the values for the next segment. The last segment (`loss_of` is given) returns the loss.

        `weight` is the weight of this micro-batch in the loss of the batch. `samples` is the number of its samples.
        `content` is the batch content, if arguments or loss need it. `shared` marks the values from the previous
        cut that this rank already stores.
        """
        given = _Given(arguments, crossing, loss_of, weight, samples, content, tuple(shared))
        around = self._around
        moment = ReplayPoint(around.buffers) if around.recomputes else None
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
        return BoundaryValues(tensors, wanted, torch.default_generator.get_state() if drew else None)

    def _forward_counted(self, given: _Given) -> tuple[list[Tensor], _Kept]:
        """Run a forward pass. Count the bytes that it stores if this number of samples is new."""
        if given.samples not in self._bytes:
            return self._count(given)
        outputs, kept = self._forward(given)
        kept.nbytes = self._bytes[given.samples].kept
        return outputs, kept

    def _count(self, given: _Given) -> tuple[list[Tensor], _Kept]:
        shared = list(compress(given.crossing.tensors, given.shared))
        counted, moment = Activations([*self._around.state(), *shared]), ReplayPoint(self._around.buffers)
        try:
            with counted.counting():
                outputs, kept = self._forward(given)
        except RuntimeError as error:
            if not refuses_counting(error):
                raise
            counted.clear()
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
        given_bytes = again.clear()
        made = counted.clear() - given_bytes
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
        """Return what a forward pass stored. With recomputation, run the forward pass again."""
        if isinstance(found, _Kept):
            return found
        nbytes = self._bytes[found.given.samples]
        self._around.account.add("activations", nbytes.made)
        with found.moment.again():
            _, kept = self._forward(found.given)
        kept.nbytes = nbytes.given + nbytes.made
        return kept

    def backward(self, micro: int, given: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the inputs that need one. Pass the gradients of the weights to `take`."""
        kept = self._computed(self._kept.pop(micro))
        found = gradients(kept.ends, given or kept.begun, [*kept.inputs, *self._weights])
        self._take(self._weights, found[len(kept.inputs) :])
        self._around.account.free("activations", kept.nbytes)
        return _filled(kept.inputs, found[: len(kept.inputs)])

    def backward_inputs(self, micro: int, given: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the inputs only."""
        kept = self._kept[micro] = self._computed(self._kept[micro])
        found, kept.weights = input_gradients(kept.ends, given or kept.begun, kept.inputs, self._weights)
        kept.ends = []
        return _filled(kept.inputs, found)

    def backward_weights(self, micro: int) -> None:
        """Compute the gradients of the weights. `backward_inputs` must be called first."""
        kept = self._kept.pop(micro)
        assert isinstance(kept, _Kept), "the gradients of the inputs come first"
        assert kept.weights is not None, "the gradients of the inputs come first"
        self._take(self._weights, kept.weights.gradients())
        self._around.account.free("activations", kept.nbytes)


def _filled(inputs: Sequence[Tensor], found: Gradients) -> list[Tensor]:
    """Return a gradient for each input: zeros where nothing depends on it."""
    return [
        torch.zeros_like(value) if gradient is None else gradient.contiguous()
        for value, gradient in zip(inputs, found, strict=True)
    ]
