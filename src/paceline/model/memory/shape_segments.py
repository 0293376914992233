"""Activation memory of shape-only segments. It equals the memory of `Passes` with data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.context import BackwardPart
from paceline.context.boundary import BoundaryValues
from paceline.model.activations import state_of
from paceline.model.cutting.cut import Cut
from paceline.model.memory.fused_attention import FusedAttention
from paceline.model.memory.ledger import Account, Ledger
from paceline.model.memory.shapes import resized, tried
from paceline.model.stages.arranged import arrived, sent, spread
from paceline.model.stages.passes import PassBytes, PassEnvironment, Passes
from paceline.model.stages.stripping import stripped

if TYPE_CHECKING:
    from paceline.model.engines.shape_model import ShapeModel


class SegmentActivations:
    """Records the activations of one rank's segments in the memory account of the rank, after each pass."""

    def __init__(self, account: Account, model: ShapeModel, cut: Cut, few: Callable[[], Any]) -> None:
        """`few` returns a few samples. Only their shapes are used."""
        self._account = account
        self._model = model
        self._cut = cut
        self._few = few
        self._in_flight: dict[tuple[int, int], PassBytes] = {}  # by segment and micro-batch
        self._sizes = _part_sizes(model, cut)
        self._runs: dict[tuple[int, int], _RunBytes] = {}  # by first segment and micro-batch
        self._known: dict[tuple[int, int, int], _RunBytes] = {}  # by first and last segment and samples

    def forward(self, segment: int, micro: int, samples: int) -> None:
        nbytes = self._in_flight[segment, micro] = self._of(segment, samples)
        if self._model.task.recompute:
            self._account.add("activations", nbytes.given)
            self._account.touch("activations", nbytes.made)
        else:
            self._account.add("activations", nbytes.kept)

    def backward(self, segment: int, micro: int) -> None:
        """Record the backward pass of the inputs."""
        if self._model.task.recompute:
            self._account.add("activations", self._in_flight[segment, micro].made)

    def end(self, segment: int, micro: int) -> None:
        """Record the end of the backward pass: the gradients of the weights are computed."""
        nbytes = self._in_flight.pop((segment, micro))
        again = self._model.task.recompute
        self._account.free("activations", nbytes.given + nbytes.made if again else nbytes.kept)

    def forward_through(self, segments: Sequence[int], micro: int, samples: int) -> None:
        """Record `forward` of several segments in turn, with the same peak."""
        run = self._of_run(segments, samples)
        self._runs[segments[0], micro] = run
        if run.forward_rise > run.kept:
            self._account.touch("activations", run.forward_rise)
        self._account.add("activations", run.kept)

    def backward_through(self, segments: Sequence[int], micro: int, way: BackwardPart) -> None:
        """Record `backward` and `end` of several segments, from the last to the first."""
        run = self._runs[segments[0], micro]
        if way == "inputs":
            self._account.add("activations", run.made)
            return
        if run.backward_rise and way == "both":
            self._account.touch("activations", run.backward_rise)
        del self._runs[segments[0], micro]
        self._account.free("activations", run.kept + (run.made if way == "weights" else 0))

    def _of_run(self, segments: Sequence[int], samples: int) -> _RunBytes:
        key = segments[0], segments[-1], samples
        found = self._known.get(key)
        if found is None:
            each = [self._of(segment, samples) for segment in segments]
            found = self._known[key] = _run_bytes(each, recomputes=self._model.task.recompute)
        return found

    def _of(self, segment: int, samples: int) -> PassBytes:
        known, key = self._model.memory.of_segments, (self._cut.bounds, self._sizes, samples)
        if key not in known:  # ranks that hold other segments use the same entry
            known[key] = tried(lambda: segment_bytes(self._model, self._cut, resized(self._few(), samples)))
        found: Sequence[PassBytes] | None = known[key]
        return PassBytes() if found is None else found[segment]


def _part_sizes(model: ShapeModel, cut: Cut) -> tuple[int, ...]:
    """Return the sizes of this rank's parts of all parameters in a tensor group. Ranks with equal sizes compute the
    same.
    """
    if cut.shares is None:
        return ()
    known, key = model.memory.of_segments, (cut.bounds, cut.position)
    if key not in known:
        known[key] = tuple(cut.count(name, each.shape) for name, each in model.module.named_parameters())
    found: tuple[int, ...] = known[key]
    return found


class _RunBytes(NamedTuple):
    """Activation bytes of passes through several segments in turn."""

    kept: int
    """Bytes stored from the forward passes until the backward passes."""
    made: int
    """Bytes that the backward passes recompute."""
    forward_rise: int
    """Peak of the forward passes, above the bytes in use before them."""
    backward_rise: int


def _run_bytes(segments: Sequence[PassBytes], *, recomputes: bool) -> _RunBytes:
    if not recomputes:
        kept = sum(each.kept for each in segments)
        return _RunBytes(kept, 0, kept, 0)
    given = made = forward_rise = backward_rise = 0
    for each in segments:
        given, made = given + each.given, made + each.made
        forward_rise = max(forward_rise, given + each.made)
    freed = 0
    for each in reversed(segments):
        backward_rise = max(backward_rise, each.made - freed)
        freed += each.given
    return _RunBytes(given, made, forward_rise, backward_rise)


def segment_bytes(model: ShapeModel, cut: Cut, content: Any) -> list[PassBytes]:
    """Return the memory of a forward pass of each segment, measured by a pass through the whole model without data."""
    task, module = model.task, model.module
    if cut.shares is not None:
        module = stripped(module, cut, range(len(cut.segments)))
    module.train()
    arguments = cut.arguments(task, module, content)
    state = [model.parameters, *state_of(module)]
    around = PassEnvironment(
        account=Ledger().account(),
        recomputes=task.recompute,
        state=lambda: state,
        context=FusedAttention,
    )
    found, crossing = list[PassBytes](), BoundaryValues()
    for number, segment in enumerate(cut.segments):
        is_last, takes = number + 1 == len(cut.segments), cut.needs_arguments(number)
        passes = Passes(cut.compute(module, number), [], lambda *_: None, around)
        own = arguments if takes else None
        loss_of = cut.loss_of(task, content) if is_last else None
        shared = cut.shared(number, found[-1].stays if found else ())
        needed = content if is_last else own
        made = passes.forward(0, own, crossing, loss_of, content=needed, shared=shared)
        found.append(passes.bytes_of(0))
        if isinstance(made, BoundaryValues):
            values = spread(sent(made.tensors, segment.reductions, cut.size), segment.reductions, cut.size)
            crossing = made._replace(tensors=tuple(arrived(values, segment.reductions)))
    return found
