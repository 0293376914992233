"""The activations of segments of shapes alone: as many as those of `Passes` with data would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.context import BackwardPart
from paceline.context.crossing import Crossing
from paceline.replica.activations import state_of
from paceline.replica.memory import Account, Ledger
from paceline.replica.pieces.arranged import arrived, sent, spread
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.part import stripped
from paceline.replica.pieces.passes import Around, PassBytes, Passes
from paceline.replica.shape_memory import resized, tried

if TYPE_CHECKING:
    from paceline.replica.shapes import ShapeReplica

__all__ = ["BlankActivations", "segment_bytes"]


class BlankActivations:
    """Those of one rank's segments, written into its account pass by pass."""

    def __init__(self, account: Account, whole: ShapeReplica, cut: Cut, few: Callable[[], Any]) -> None:
        """`few` gives some samples, for their shapes."""
        self._account = account
        self._whole = whole
        self._cut = cut
        self._few = few
        self._in_flight: dict[tuple[int, int], PassBytes] = {}  # by segment and micro-batch
        self._sizes = _part_sizes(whole, cut)
        self._runs: dict[tuple[int, int], _RunBytes] = {}  # by first segment and micro-batch
        self._known: dict[tuple[int, int, int], _RunBytes] = {}  # by first and last segment and samples

    def forward(self, segment: int, micro: int, samples: int) -> None:
        nbytes = self._in_flight[segment, micro] = self._of(segment, samples)
        if self._whole.task.recompute:
            self._account.add("activations", nbytes.given)
            self._account.touch("activations", nbytes.made)
        else:
            self._account.add("activations", nbytes.kept)

    def backward(self, segment: int, micro: int) -> None:
        """The gradients of the inputs are computed."""
        if self._whole.task.recompute:
            self._account.add("activations", self._in_flight[segment, micro].made)

    def end(self, segment: int, micro: int) -> None:
        """Those of the weights are, too."""
        nbytes = self._in_flight.pop((segment, micro))
        again = self._whole.task.recompute
        self._account.free("activations", nbytes.given + nbytes.made if again else nbytes.kept)

    def forward_through(self, segments: Sequence[int], micro: int, samples: int) -> None:
        """`forward` of several segments in turn, with the same peak."""
        run = self._of_run(segments, samples)
        self._runs[segments[0], micro] = run
        if run.forward_rise > run.kept:
            self._account.touch("activations", run.forward_rise)
        self._account.add("activations", run.kept)

    def backward_through(self, segments: Sequence[int], micro: int, way: BackwardPart) -> None:
        """`backward` and `end` of several segments, from the last to the first."""
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
            found = self._known[key] = _run_bytes(each, recomputes=self._whole.task.recompute)
        return found

    def _of(self, segment: int, samples: int) -> PassBytes:
        known, key = self._whole.memory.of_segments, (self._cut.bounds, self._sizes, samples)
        if key not in known:  # ranks that hold other segments ask for the same
            known[key] = tried(lambda: segment_bytes(self._whole, self._cut, resized(self._few(), samples)))
        found: Sequence[PassBytes] | None = known[key]
        return PassBytes() if found is None else found[segment]


def _part_sizes(whole: ShapeReplica, cut: Cut) -> tuple[int, ...]:
    """Of a rank's parts of all parameters, where it is of a tensor group: who has the same computes the same."""
    if cut.shares is None:
        return ()
    known, key = whole.memory.of_segments, (cut.bounds, cut.position)
    if key not in known:
        known[key] = tuple(cut.count(name, each.shape) for name, each in whole.module.named_parameters())
    found: tuple[int, ...] = known[key]
    return found


class _RunBytes(NamedTuple):
    """What passes through several segments in turn take."""

    kept: int
    """After the forward passes, until the backward ones."""
    made: int
    """What the backward passes compute again."""
    forward_rise: int
    """The most above what was there before them."""
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


def segment_bytes(whole: ShapeReplica, cut: Cut, content: Any) -> list[PassBytes]:
    """What a forward pass of each segment takes, found by a pass through the whole model without data."""
    task, module = whole.task, whole.module
    if cut.shares is not None:
        module = stripped(module, cut, range(len(cut.segments)))
    module.train()
    arguments = cut.arguments(task, module, content)
    state = [whole.parameters, *state_of(module)]
    around = Around(account=Ledger().account(), recomputes=task.recompute, state=lambda: state)
    found, crossing = list[PassBytes](), Crossing()
    for number, segment in enumerate(cut.segments):
        is_last, takes = number + 1 == len(cut.segments), cut.needs_arguments(number)
        passes = Passes(cut.compute(module, number), [], lambda *_: None, around)
        own = arguments if takes else None
        loss_of = cut.loss_of(task, content) if is_last else None
        shared = cut.shared(number, found[-1].stays if found else ())
        needed = content if is_last else own
        made = passes.forward(0, own, crossing, loss_of, content=needed, shared=shared)
        found.append(passes.bytes_of(0))
        if isinstance(made, Crossing):
            values = spread(sent(made.tensors, segment.sums, cut.size), segment.sums, cut.size)
            crossing = made._replace(tensors=tuple(arrived(values, segment.sums)))
    return found
