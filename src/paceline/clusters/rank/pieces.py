"""A rank's model in segments, as far as it is the same in every world. A world adds how long a pass takes: `_timed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.utils._pytree import tree_map

from paceline.clusters.rank.holding import what_is_held
from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.shards import RankShards
from paceline.context import BackwardPart, Batch, Crossing, Net, Segment
from paceline.costs.prices import Pass, Work
from paceline.errors import GradientNotFiniteError
from paceline.replica.blueprint import Blueprint
from paceline.replica.pieces.blank import BlankPart, BlankSharded
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.cutting import Layers
from paceline.replica.pieces.part import PartReplica
from paceline.replica.pieces.sharded import ShardedReplica
from paceline.replica.shapes import ShapeReplica
from paceline.replica.steps import micro_batches
from paceline.trace import Kind

__all__ = ["KINDS", "RankPieces"]

R = TypeVar("R", bound=Rank)
T = TypeVar("T")

_WORKS = {"forward": Work.FORWARD, "both": Work.BACKWARD, "inputs": Work.INPUTS, "weights": Work.WEIGHTS}
# As plain numbers: a member of an enumeration takes longer to find.
_FORWARD = int(Kind.FORWARD)
KINDS = {
    "forward": _FORWARD,
    "both": int(Kind.BACKWARD),
    "inputs": int(Kind.BACKWARD),
    "weights": int(Kind.WEIGHTS),
}


class RankPieces(ABC, Generic[R]):
    """The segments of one rank. Its subclasses satisfy `paceline.context.Pieces`."""

    __slots__ = ("_batch", "_ctx", "_cut", "_layers", "_learner", "_loss", "_micros", "_passes", "_position")

    def __init__(self, ctx: R, learner: Learner[Any]) -> None:
        self._ctx = ctx
        self._learner = learner
        self._layers: dict[tuple[int, bool], Layers] = {}
        """By the size of a tensor group, and whether it parts sequences."""
        self._position = 0  # in that group
        self._cut: Cut | None = None
        self._batch: Batch | None = None
        self._micros: list[Batch] = []
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

    def cut(
        self,
        stages: int,
        cuts: Sequence[str] = (),
        *,
        finer: int = 1,
        tensor: int = 1,
        sequence: bool = False,
    ) -> None:
        self._cut = self._off_the_clock(
            lambda: self._found_layers(tensor, sequence).cut(stages, cuts, finer=finer)
        )
        self._passes.clear()

    def hold(self, segments: Sequence[int], *, worker: int = 0, position: int = 0) -> None:
        self._ctx.note_holds(what_is_held(self._of_cut().at(position), segments))
        self._hold(segments, worker, position)

    def _hold(self, segments: Sequence[int], worker: int, position: int, *, shares: bool = False) -> None:
        self._position = position
        whole = self._ctx.is_reporter
        # Only a reporter needs the whole model at some time: the others take their part of it.
        replica = self._off_the_clock(lambda: self._learner.replica) if whole else self._learner.source
        cut = self._of_cut().at(position)
        if isinstance(replica, PartReplica | BlankPart):
            assert replica.held == tuple(segments), "in every leg a rank holds the same"
            return
        if isinstance(replica, ShapeReplica):
            self._hold_blank(BlankPart(replica, cut, segments))
            return
        # Parts of a whole replica's parameters lie in its memory, which it gives up: these are copied at once.
        is_bare = shares and isinstance(replica, Blueprint)
        keeping: dict[str, Any] = {"keeps_whole": whole, "worker": worker, "is_bare": is_bare}
        self._learner.hold(self._off_the_clock(lambda: PartReplica(replica, cut, segments, **keeping)))

    def share(
        self, segments: Sequence[int], *, ranks: int, own: int, sheds: bool, position: int = 0
    ) -> RankShards:
        cut, learner = self._of_cut().at(position), self._learner
        self._ctx.note_holds(what_is_held(cut, segments, shard=(own, ranks)))
        replica = learner.source
        if isinstance(replica, ShapeReplica) and not isinstance(replica, BlankPart):
            self._hold_blank(BlankSharded(replica, cut, segments, ranks=ranks, own=own, sheds=sheds))
        elif not isinstance(replica, ShardedReplica | BlankSharded):
            if len(segments) < len(cut.segments) or cut.shares is not None:
                self._hold(segments, own, position, shares=True)
            source = learner.source
            before = source.build(is_bare=True) if isinstance(source, Blueprint) else source
            learner.hold(
                self._off_the_clock(lambda: ShardedReplica(before, cut, ranks=ranks, own=own, sheds=sheds))
            )
        shared = learner.replica
        assert isinstance(shared, ShardedReplica | BlankSharded)
        return RankShards(self._ctx, shared)

    def _hold_blank(self, part: BlankPart) -> None:
        self._learner.hold(part)
        if self._learner.account is not None:
            part.count_in(self._learner.account, self._ctx.data.few)

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

    def _found_layers(self, tensor: int = 1, sequence: bool = False) -> Layers:
        key = tensor, sequence
        if key not in self._layers:
            self._layers[key] = self._find_layers(tensor, sequence)
        return self._layers[key]

    def _find_layers(self, tensor: int, sequence: bool) -> Layers:
        replica = self._learner.source
        if isinstance(replica, ShapeReplica) and replica.is_stand_in:
            return Layers.untried(replica.module)
        few = self._ctx.data.few()
        where = "meta" if isinstance(replica, ShapeReplica) else replica.device
        few = tree_map(lambda leaf: leaf.to(where) if isinstance(leaf, Tensor) else leaf, few)
        return Layers.of(replica.task, replica.module, few, tensor=tensor, sequence=sequence)

    # Passes

    def begin_batch(
        self, batch: Batch, parts: int | None = None, *, widest: int | None = None
    ) -> Sequence[Batch]:
        part = self._part()
        parts = part.task.accumulate if parts is None else parts
        self._batch, self._loss = batch, None
        self._micros = micro_batches(batch, parts)
        if widest is not None:
            empty = Batch(batch.step, batch.start, 0, batch.total, batch.whole, batch.update)
            self._micros += [empty] * (min(parts, widest) - len(self._micros))
        part.begin_batch()
        return self._micros

    def forward(self, segment: int, micro: int, given: Crossing) -> Awaitable[Crossing]:
        batch, part = self._micros[micro], self._part()

        def run() -> Crossing:
            made = part.forward(segment, batch, micro, self._ctx.data.source, given)
            if isinstance(made, Crossing):
                return made
            self._note_loss(batch, made.item())
            return Crossing()

        return self._timed(_FORWARD, self._pass("forward", segment, batch), micro, run)

    def _note_loss(self, batch: Batch, loss: float) -> None:
        """Of a micro-batch."""
        assert self._batch is not None
        self._loss = (self._loss or 0.0) + batch.count / self._batch.count * loss

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

        return self._timed(KINDS[part], self._pass(part, segment, self._micros[micro]), micro, run)

    def forward_through(
        self, segments: Sequence[int], micro: int, given: Crossing, net: Net
    ) -> Awaitable[Crossing] | None:
        return None

    def backward_through(
        self, segments: Sequence[int], micro: int, gradients: Sequence[Tensor], part: BackwardPart, net: Net
    ) -> Awaitable[Sequence[Tensor]] | None:
        return None

    def end_batch(self) -> None:
        ctx, batch, part = self._ctx, self._batch, self._part()
        assert batch is not None
        part.end_batch()
        if self._position > 0:  # the first of its tensor group notes the loss of all
            if part.not_finite is not None:
                raise GradientNotFiniteError(ctx.rank, ctx.step, part.not_finite)
        elif self._loss is not None and isinstance(part, BlankPart):
            ctx.outcome.losses.append((batch.step, self._loss, batch.count))
        elif self._loss is not None:  # this rank has the last segment
            self._learner.note_loss(batch, self._loss)
        elif part.not_finite is not None:
            raise GradientNotFiniteError(ctx.rank, ctx.step, part.not_finite)

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
            stage_share=self._stage_share(of),
        )

    def _stage_share(self, of: Segment) -> float:
        shares = [each.share for each in self.segments if each.stage == of.stage]
        return of.share / sum(shares) if any(shares) else 1 / len(shares)

    @abstractmethod
    def _timed(self, kind: int, one: Pass, micro: int, run: Callable[[], T]) -> Awaitable[T]:
        """Do a pass, in the time that it takes in this world. `kind` is that of its span."""

    # What others hold

    def trains(self, name: str) -> bool:
        return name in self._learner.replica.layout.names

    def place_of(self, name: str) -> slice:
        return self._part().place_of(name)

    @property
    def held_parameters(self) -> Tensor:
        return self._part().held_parameters()

    @property
    def held_buffers(self) -> Sequence[Tensor]:
        return self._part().held_buffers()

    @property
    def averages(self) -> bool:
        return self._learner.source.task.ema is not None

    def put(
        self, segments: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], *, position: int = 0
    ) -> None:
        self._part().put(segments, parameters, buffers, position)

    def _part(self) -> PartReplica | BlankPart:
        replica = self._learner.replica
        assert isinstance(replica, PartReplica | BlankPart), "hold comes first"
        return replica
