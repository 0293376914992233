"""A rank's model in segments, as far as it is the same in every world. A world adds how long a pass takes: `_timed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.rank import Rank
from paceline.context import BackwardPart, Batch, Crossing, Segment
from paceline.costs.prices import Pass, Work
from paceline.errors import GradientNotFiniteError
from paceline.replica.pieces.blank import BlankPart
from paceline.replica.pieces.cutting import Cut, Layers, few_samples
from paceline.replica.pieces.part import PartReplica
from paceline.replica.pieces.whole import without_data
from paceline.replica.shapes import ShapeReplica
from paceline.replica.steps import micro_batches
from paceline.trace import Kind

__all__ = ["RankPieces"]

R = TypeVar("R", bound=Rank)
T = TypeVar("T")

_WORKS = {"forward": Work.FORWARD, "both": Work.BACKWARD, "inputs": Work.INPUTS, "weights": Work.WEIGHTS}
# As plain numbers: a member of an enumeration takes longer to find.
_FORWARD = int(Kind.FORWARD)
_KINDS = {"both": int(Kind.BACKWARD), "inputs": int(Kind.BACKWARD), "weights": int(Kind.WEIGHTS)}


class RankPieces(ABC, Generic[R]):
    """The segments of one rank. Its subclasses satisfy `paceline.context.Pieces`."""

    __slots__ = ("_batch", "_ctx", "_cut", "_layers", "_learner", "_loss", "_micros", "_passes")

    def __init__(self, ctx: R, learner: Learner[Any]) -> None:
        self._ctx = ctx
        self._learner = learner
        self._layers: Layers | None = None
        self._cut: Cut | None = None
        self._batch: Batch | None = None
        self._micros: Sequence[Batch] = ()
        self._loss: float | None = None
        self._passes: dict[tuple[str, int, int, int], Pass] = {}
        """By way, segment, samples of the micro-batch and of the batch: the same few come again and again."""

    # Cutting

    @property
    def most_segments(self) -> int:
        return self._off_the_clock(self._found_layers).most

    @property
    def segments(self) -> Sequence[Segment]:
        return self._of_cut().segments

    def cut(self, stages: int, cuts: Sequence[str] = (), *, finer: int = 1) -> None:
        self._cut = self._off_the_clock(lambda: self._found_layers().cut(stages, cuts, finer=finer))
        self._passes.clear()

    def hold(self, segments: Sequence[int]) -> None:
        replica, cut = self._learner.replica, self._of_cut()
        if isinstance(replica, PartReplica | BlankPart):
            assert replica.held == tuple(segments), "in every leg a rank holds the same"
            return
        if isinstance(replica, ShapeReplica):
            self._learner.hold(BlankPart(replica, cut, segments))
            return
        whole = self._ctx.is_reporter
        self._learner.hold(
            self._off_the_clock(lambda: PartReplica(replica, cut, segments, keeps_whole=whole))
        )

    def _off_the_clock(self, work: Callable[[], T]) -> T:
        """Tracing a model takes a second or more, once: it is no part of a step."""
        start_s = self._ctx.now()
        made = work()
        if self._ctx.now() > start_s:
            self._ctx.log._leave_out(start_s)
        return made

    def _of_cut(self) -> Cut:
        assert self._cut is not None, "cut comes first"
        return self._cut

    def _found_layers(self) -> Layers:
        if self._layers is None:
            self._layers = self._find_layers()
        return self._layers

    def _find_layers(self) -> Layers:
        replica, data = self._learner.replica, self._ctx.data
        if isinstance(replica, ShapeReplica) and replica.is_stand_in:
            return Layers.untried(replica.module)
        few = few_samples(data.samples, data.batch_of(0, 0))
        if isinstance(replica, ShapeReplica):
            few = without_data(few)
        return Layers.of(replica.task, replica.module, few)

    # Passes

    def begin_batch(self, batch: Batch, parts: int) -> Sequence[Batch]:
        self._batch, self._loss = batch, None
        self._micros = micro_batches(batch, parts)
        self._part().begin_batch()
        return self._micros

    def forward(self, segment: int, micro: int, given: Crossing) -> Awaitable[Crossing]:
        batch, part = self._micros[micro], self._part()

        def run() -> Crossing:
            made = part.forward(segment, batch, micro, self._ctx.data.source, given)
            if isinstance(made, Crossing):
                return made
            assert self._batch is not None
            self._loss = (self._loss or 0.0) + batch.count / self._batch.count * made.item()
            return Crossing()

        return self._timed(_FORWARD, self._pass("forward", segment, batch), micro, run)

    def backward(
        self, segment: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart = "both"
    ) -> Awaitable[Sequence[Tensor]]:
        held = self._part()

        def run() -> Sequence[Tensor]:
            if part == "weights":
                held.backward_weights(segment, micro)
                return ()
            walk = held.backward if part == "both" else held.backward_inputs
            return walk(segment, micro, gradients)

        return self._timed(_KINDS[part], self._pass(part, segment, self._micros[micro]), micro, run)

    def end_batch(self) -> None:
        ctx, batch, part = self._ctx, self._batch, self._part()
        assert batch is not None
        part.end_batch()
        if self._loss is not None and isinstance(part, BlankPart):
            ctx.outcome.losses.append((batch.step, self._loss, batch.count))
        elif self._loss is not None:  # this rank has the last segment
            self._learner.note_loss(batch, self._loss)
        elif part.not_finite is not None:
            raise GradientNotFiniteError(ctx.rank, ctx.step, part.not_finite)

    def _pass(self, way: str, segment: int, batch: Batch) -> Pass:
        key = way, segment, batch.count, batch.total
        one = self._passes.get(key)
        if one is None:
            of = self._of_cut().segments[segment]
            slice_samples = batch.total / len(self._ctx.workers)
            one = Pass(_WORKS[way], of.share, batch.count, slice_samples, of.flops, of.moved_bytes)
            self._passes[key] = one
        return one

    @abstractmethod
    def _timed(self, kind: int, one: Pass, micro: int, run: Callable[[], T]) -> Awaitable[T]:
        """Do a pass, in the time that it takes in this world. `kind` is that of its span."""

    # What others hold

    def trains(self, name: str) -> bool:
        return name in self._learner.replica.layout.names

    def gradient_of(self, name: str) -> Tensor:
        return self._part().gradient_of(name)

    @property
    def held_buffers(self) -> Sequence[Tensor]:
        return self._part().held_buffers()

    @property
    def averages(self) -> bool:
        return self._learner.replica.task.ema is not None

    def put(self, segments: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor]) -> None:
        self._part().put(segments, parameters, buffers)

    def _part(self) -> PartReplica | BlankPart:
        replica = self._learner.replica
        assert isinstance(replica, PartReplica | BlankPart), "hold comes first"
        return replica
