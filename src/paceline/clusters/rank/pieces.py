"""The part of a context that learns in segments, as far as it is the same in every world.

A world adds how long a pass takes: `_timed`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor
from torch.utils._pytree import tree_map

from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.rank import Rank
from paceline.context import BackwardPart, Batch, Crossing, Segment
from paceline.costs.prices import Pass, Work
from paceline.errors import GradientNotFiniteError
from paceline.replica.pieces.blank import BlankPart
from paceline.replica.pieces.cutting import Cut, Layers, few_samples
from paceline.replica.pieces.part import PartReplica
from paceline.replica.replica import Replica
from paceline.replica.shapes import ShapeReplica
from paceline.replica.steps import micro_batches
from paceline.trace import Kind

__all__ = ["PieceLearner"]

R = TypeVar("R", bound=Rank)
T = TypeVar("T")

_WORKS = {"both": Work.BACKWARD, "inputs": Work.INPUTS, "weights": Work.WEIGHTS}
_KINDS = {"both": Kind.BACKWARD, "inputs": Kind.BACKWARD, "weights": Kind.WEIGHTS}


class PieceLearner(Learner[R]):
    """A rank's segments of the model."""

    __slots__ = ("_batch", "_cut", "_layers", "_loss", "_micros")

    def __init__(self, ctx: R, replica: Replica | None) -> None:
        super().__init__(ctx, replica)
        self._layers: Layers | None = None
        self._cut: Cut | None = None
        self._batch: Batch | None = None
        self._micros: Sequence[Batch] = ()
        self._loss: float | None = None

    # Cutting

    @property
    def most_segments(self) -> int:
        return self._off_the_clock(self._found_layers).most

    @property
    def segments(self) -> Sequence[Segment]:
        return self._of_cut().segments

    def cut(self, segments: int, cuts: Sequence[str] = ()) -> None:
        self._cut = self._off_the_clock(lambda: self._found_layers().cut(segments, cuts))

    def hold(self, segments: Sequence[int]) -> None:
        replica, cut = self.replica, self._of_cut()
        if isinstance(replica, PartReplica | BlankPart):
            assert replica.held == tuple(segments), "in every leg a rank holds the same"
            return
        if isinstance(replica, ShapeReplica):
            self._replica = part = BlankPart(replica, cut, segments)
            assert self.account is not None
            part.count_in(self.account, self._few_samples, keeps_whole=self._ctx.is_reporter)
            return
        whole = self._ctx.is_reporter
        self._replica = self._off_the_clock(lambda: PartReplica(replica, cut, segments, keeps_whole=whole))

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
        replica = self.replica
        if isinstance(replica, ShapeReplica) and replica.is_stand_in:
            return Layers.untried(replica.module)
        few = self._few_samples()
        if isinstance(replica, ShapeReplica):
            few = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, few)
        return Layers.of(replica.task, replica.module, few)

    def _few_samples(self) -> Any:
        data = self._ctx.data
        return few_samples(data.samples, data.batch_of(0, 0))

    # Passes

    def begin_batch(self, batch: Batch, parts: int) -> Sequence[Batch]:
        self._batch, self._loss = batch, None
        self._micros = micro_batches(batch, parts)
        self._part().begin_batch()
        return self._micros

    async def forward(self, segment: int, micro: int, given: Crossing) -> Crossing:
        batch, part = self._micros[micro], self._part()
        source = self._ctx.data.source
        work = self._pass(Work.FORWARD, segment, batch)
        made = await self._timed(
            Kind.FORWARD, work, micro, lambda: part.forward(segment, batch, micro, source, given)
        )
        if isinstance(made, Crossing):
            return made
        assert self._batch is not None
        self._loss = (self._loss or 0.0) + batch.count / self._batch.count * made.item()
        return Crossing()

    async def backward(
        self, segment: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart = "both"
    ) -> Sequence[Tensor]:
        held, work = self._part(), self._pass(_WORKS[part], segment, self._micros[micro])

        def run() -> Sequence[Tensor]:
            if part == "weights":
                held.backward_weights(segment, micro)
                return ()
            walk = held.backward if part == "both" else held.backward_inputs
            return walk(segment, micro, gradients)

        return await self._timed(_KINDS[part], work, micro, run)

    def end_batch(self) -> None:
        ctx, batch, part = self._ctx, self._batch, self._part()
        assert batch is not None
        part.end_batch()
        if self._loss is not None and isinstance(part, BlankPart):
            ctx.outcome.losses.append((batch.step, self._loss, batch.count))
        elif self._loss is not None:  # this rank has the last segment
            self.note_loss(batch, self._loss)
        elif part.not_finite is not None:
            raise GradientNotFiniteError(ctx.rank, ctx.step, part.not_finite)

    def _pass(self, work: Work, segment: int, batch: Batch) -> Pass:
        slice_samples = batch.total / len(self._ctx.workers)
        recomputes = self.replica.task.recompute and work in (Work.BACKWARD, Work.INPUTS)
        return Pass(work, self._of_cut().segments[segment].share, batch.count, slice_samples, recomputes)

    @abstractmethod
    async def _timed(self, kind: Kind, one: Pass, micro: int, run: Callable[[], T]) -> T:
        """Do a pass, in the time that it takes in this world."""

    # What others hold

    def trains(self, name: str) -> bool:
        return name in self.replica.layout.names

    def gradient_of(self, name: str) -> Tensor:
        return self._part().gradient_of(name)

    @property
    def held_buffers(self) -> Sequence[Tensor]:
        return self._part().held_buffers()

    @property
    def averages(self) -> bool:
        return self.replica.task.ema is not None

    def put(self, segments: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor]) -> None:
        self._part().put(segments, parameters, buffers)

    def _part(self) -> PartReplica | BlankPart:
        replica = self.replica
        assert isinstance(replica, PartReplica | BlankPart), "hold comes first"
        return replica
