"""A rank's model in segments, as far as it is the same in every cluster. A cluster adds the time of a pass:
`_timed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from torch import Tensor

from paceline.clusters.rank.collecting import collect
from paceline.clusters.rank.holding import what_is_held
from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.shards import RankShards
from paceline.collectives.group_reductions import reduce_values
from paceline.context import BackwardPart, Batch, BoundaryValues, Net, Segment
from paceline.costs.prices import Pass, Work
from paceline.errors import ConfigurationError, GradientNotFiniteError
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layers import Layers
from paceline.model.holding import Sharding
from paceline.model.replica import Replica
from paceline.model.steps import micro_batches
from paceline.trace import Kind

R = TypeVar("R", bound=Rank)
T = TypeVar("T")

_WORKS = {"forward": Work.FORWARD, "both": Work.BACKWARD, "inputs": Work.INPUTS, "weights": Work.WEIGHTS}
# Plain integers: reading an enumeration member is slower.
_FORWARD = int(Kind.FORWARD)
KINDS = {
    "forward": _FORWARD,
    "both": int(Kind.BACKWARD),
    "inputs": int(Kind.BACKWARD),
    "weights": int(Kind.WEIGHTS),
}


class RankStages(ABC, Generic[R]):
    """The segments of one rank. Its subclasses satisfy `paceline.context.Stages`."""

    __slots__ = (
        "_ctx",
        "_cut",
        "_held",
        "_layers",
        "_learner",
        "_losses",
        "_micros",
        "_passes",
        "_position",
        "_wanted",
    )

    def __init__(self, ctx: R, learner: Learner[Any]) -> None:
        self._ctx = ctx
        self._learner = learner
        self._layers: dict[tuple[int, bool], Layers] = {}
        """By size of the tensor group, and whether it splits sequences."""
        self._position = 0  # in the tensor group
        self._held: tuple[int, ...] | None = None
        self._cut: Cut | None = None
        self._micros: list[Batch] = []
        self._wanted: dict[tuple[int, int], tuple[bool, ...]] = {}
        """Which inputs of a segment need a gradient, by segment and micro-batch, if a tensor group reduces them."""
        self._losses: list[tuple[int, float | None]] = []
        """Samples and loss of each micro-batch of the last segment."""
        self._passes: dict[tuple[str, int, int, int], Pass] = {}
        """By direction, segment, and sample counts of the micro-batch and of the batch. Few combinations occur."""

    # Cutting

    @property
    def segments(self) -> Sequence[Segment]:
        return self._of_cut().segments

    def cut(
        self,
        stages: int,
        cuts: Sequence[str] = (),
        *,
        chunks: int = 1,
        fewer: bool = False,
        finer: int = 1,
        tensor: int = 1,
        sequence: bool = False,
    ) -> Sequence[Segment]:
        layers = self._off_the_clock(lambda: self._found_layers(tensor, sequence))
        count = min(stages, max(1, layers.most // chunks)) if fewer else stages
        # Tensor groups reduce values twice in each block, so their segments are small enough.
        recomputes = self._learner.replica.task.recompute and finer == tensor == 1
        segments = None if recomputes else finer
        self._cut = self._off_the_clock(lambda: layers.cut(count * chunks, cuts, finer=segments))
        self._passes.clear()
        return self._cut.segments

    def hold(
        self,
        segments: Sequence[int],
        *,
        worker: int = 0,
        position: int = 0,
        shared_by: int | None = None,
        frees_parameters: bool = False,
    ) -> RankShards:
        cut, learner = self._of_cut().at(position), self._learner
        if frees_parameters and learner.replica.task.ema is not None:
            remedy = "leave it out, or shard optimizer state and gradients only (stage 2)"
            raise ConfigurationError("ema", "must not be given where parameters are shed", "a decay", remedy)
        shard = None if shared_by is None else (worker, shared_by)
        self._ctx.note_holds(what_is_held(cut, segments, shard=shard))
        self._position = position
        if not self._is_held(segments):
            sharding = None if shared_by is None else Sharding(shared_by, worker, frees_parameters)
            learner.hold(self._off_the_clock(lambda: self._narrowed(cut, segments, worker, sharding)))
        return RankShards(self._ctx, learner.replica)

    def _narrowed(self, cut: Cut, segments: Sequence[int], worker: int, sharding: Sharding | None) -> Replica:
        """Return the replica of these segments."""
        replica = self._learner.replica
        if sharding is not None and len(segments) == len(cut.segments) and cut.shares is None:
            return replica.sharded(cut, sharding)  # it gathers the whole model by itself
        keeps_whole = self._ctx.is_reporter
        if keeps_whole:  # other ranks only build their part
            replica.build()
        if sharding is None:
            return replica.part(cut, segments, worker=worker, keeps_whole=keeps_whole)
        return replica.sharded(cut, sharding, segments, worker=worker, keeps_whole=keeps_whole)

    def _is_held(self, segments: Sequence[int]) -> bool:
        """Return whether this rank has held these segments since an earlier generation."""
        if self._held is None:
            self._held = tuple(segments)
            return False
        assert self._held == tuple(segments), "a rank holds the same segments in every generation"
        return True

    def _off_the_clock(self, work: Callable[[], T]) -> T:
        """Do work that is excluded from the run's clock. Tracing a model takes a second or more, once."""
        start_s = self._ctx.now()
        made = work()
        if self._ctx.now() > start_s:
            self._ctx.log._leave_out(start_s)
        return made

    def _of_cut(self) -> Cut:
        assert self._cut is not None, "cut comes first"
        return self._cut

    def _found_layers(self, tensor: int = 1, sequence: bool = False) -> Layers:
        key = tensor, sequence
        if key not in self._layers:
            self._layers[key] = self._find_layers(tensor, sequence)
        return self._layers[key]

    def _find_layers(self, tensor: int, sequence: bool) -> Layers:
        return self._learner.replica.layers(self._ctx.data.few, tensor=tensor, sequence=sequence)

    # Passes

    @contextmanager
    def batch(
        self, batch: Batch, parts: int | None = None, *, widest: int | None = None
    ) -> Iterator[Sequence[Batch]]:
        part = self._part()
        parts = part.task.accumulate if parts is None else parts
        self._losses = []
        self._micros = micro_batches(batch, parts)
        if widest is not None:
            empty = Batch(batch.step, batch.start, 0, batch.total, batch.whole, batch.update)
            self._micros += [empty] * (min(parts, widest) - len(self._micros))
        part.begin_batch()
        yield self._micros
        part.end_batch()
        self._end_batch(batch, part)

    def forward(
        self, segments: Sequence[int], micro: int, given: BoundaryValues, net: Net | None = None
    ) -> Awaitable[BoundaryValues]:
        if net is None and len(segments) == 1:
            return self._forward(segments[0], micro, given)
        return self._forward_each(segments, micro, given, net)

    async def _forward_each(
        self, segments: Sequence[int], micro: int, given: BoundaryValues, net: Net | None
    ) -> BoundaryValues:
        for number in segments:
            segment = self.segments[number]
            if segment.gradient_reductions and net is not None:
                self._wanted[number, micro] = given.wanted
            given = await self._forward(number, micro, given)
            if segment.reductions and net is not None:
                tensors = await reduce_values(net, given.tensors, segment.reductions)
                given = given._replace(tensors=tuple(tensors))
        return given

    def _forward(self, segment: int, micro: int, given: BoundaryValues) -> Awaitable[BoundaryValues]:
        batch, part = self._micros[micro], self._part()

        def run() -> BoundaryValues:
            made = part.forward(segment, batch, micro, self._ctx.data.source, given)
            if isinstance(made, BoundaryValues):
                return made
            self._losses.append((batch.count, None if made is None else made.item()))
            return BoundaryValues()

        return self._timed(_FORWARD, self._pass("forward", segment, batch), micro, run)

    def backward(
        self,
        segments: Sequence[int],
        micro: int,
        gradients: Sequence[Tensor],
        part: BackwardPart = "both",
        net: Net | None = None,
    ) -> Awaitable[Sequence[Tensor]]:
        if net is None and len(segments) == 1:
            return self._backward(segments[0], micro, gradients, part)
        return self._backward_each(segments, micro, gradients, part, net)

    async def _backward_each(
        self,
        segments: Sequence[int],
        micro: int,
        gradients: Sequence[Tensor],
        part: BackwardPart,
        net: Net | None,
    ) -> Sequence[Tensor]:
        for number in reversed(segments):
            segment = self.segments[number]
            gradients = await self._backward(number, micro, gradients, part)
            if segment.gradient_reductions and part != "weights" and net is not None:
                wanted = self._wanted.pop((number, micro))
                gradients = await reduce_values(net, gradients, segment.gradient_reductions_of(wanted))
        return gradients

    def _backward(
        self, segment: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart
    ) -> Awaitable[Sequence[Tensor]]:
        held = self._part()

        def run() -> Sequence[Tensor]:
            return held.backward(segment, micro, gradients, part)

        return self._timed(KINDS[part], self._pass(part, segment, self._micros[micro]), micro, run)

    def _end_batch(self, batch: Batch, part: Replica) -> None:
        ctx = self._ctx
        # The first rank of a tensor group records the loss of all.
        if self._losses and self._position == 0:  # this rank has the last segment
            self._learner.note_loss(batch, self._mean_loss(batch))
        elif part.not_finite is not None:
            raise GradientNotFiniteError(ctx.rank, ctx.step, part.not_finite)

    def _mean_loss(self, batch: Batch) -> float | None:
        """Return the mean loss of the batch; None if it was not computed."""
        total = 0.0
        for count, loss in self._losses:
            if loss is None:
                return None
            total += count / batch.count * loss
        return total

    def _pass(self, way: str, segment: int, batch: Batch) -> Pass:
        key = way, segment, batch.count, batch.total
        one = self._passes.get(key)
        if one is None:
            one = self._passes[key] = self._new_pass(way, segment, batch)
        return one

    def _new_pass(self, way: str, segment: int, batch: Batch) -> Pass:
        of = self._of_cut().segments[segment]
        return Pass(
            _WORKS[way],
            of.share,
            batch.count,
            slice_samples=batch.total / len(self._ctx.workers),
            recomputes=self._learner.replica.task.recompute and way in ("both", "inputs"),
            flops=of.flops,
            moved_bytes=of.moved_bytes,
            launches=of.launches,
            stage_share=self._stage_share(of),
        )

    def _stage_share(self, of: Segment) -> float:
        shares = [each.share for each in self.segments if each.stage == of.stage]
        return of.share / sum(shares) if any(shares) else 1 / len(shares)

    @abstractmethod
    def _timed(self, kind: int, one: Pass, micro: int, run: Callable[[], T]) -> Awaitable[T]:
        """Do a pass, in the time that it takes in this cluster. `kind` is the kind of its span."""

    # Parameters held by other ranks

    def place_of(self, name: str) -> slice | None:
        holding = self._learner.replica.holding
        return holding.place_of(name) if name in holding.layout.names else None

    def collect(self, step: int, net: Net, segments: Sequence[Sequence[int]]) -> Awaitable[None]:
        return collect(self._ctx.log, self._part(), step, net, segments)

    def _part(self) -> Replica:
        assert self._held is not None, "hold comes first"
        return self._learner.replica
