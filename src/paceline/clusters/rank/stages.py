"""A rank's model in segments, as far as it is the same in every cluster. A cluster adds the time of a pass:
`_timed`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from paceline.clusters.rank.collecting import collect
from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.model_cut import ModelCut
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.shards import RankShards
from paceline.collectives.group_reductions import reduce_values
from paceline.context import BackwardPart, Batch, BoundaryValues, Net, Segment
from paceline.costs.prices import Pass, Work
from paceline.data.samples import Source
from paceline.errors import GradientNotFiniteError
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


class RankStages(ModelCut[R]):
    """The segments of one rank. Its subclasses satisfy `paceline.context.Stages`."""

    __slots__ = ("_losses", "_micros", "_passes", "_pinned", "_wanted")

    def __init__(self, ctx: R, learner: Learner[Any]) -> None:
        super().__init__(ctx, learner)
        self._micros: dict[int, Batch] = {}
        """Micro-batches of the open batches, by number."""
        self._pinned: dict[int, bool] = {}
        """Open batches that pin a version of the parameters, by step: whether their backward passes have begun."""
        self._wanted: dict[tuple[int, int], tuple[bool, ...]] = {}
        """Which inputs of a segment need a gradient, by segment and micro-batch, if a tensor group reduces them."""
        self._losses: dict[int, list[tuple[int, float | None]]] = {}
        """Samples and loss of each micro-batch of the last segment, by step."""
        self._passes: dict[tuple[str, int, int, int], Pass] = {}
        """Cached by direction, segment, and sample counts of the micro-batch and of the batch. Few combinations
        occur."""

    def hold(
        self,
        segments: Sequence[int],
        *,
        worker: int = 0,
        position: int = 0,
        shared_by: int | None = None,
        frees_parameters: bool = False,
    ) -> RankShards:
        self._hold(segments, worker, position, shared_by, frees_parameters)
        self._passes.clear()
        return RankShards(self._ctx, self, self._learner.replica)

    # Passes

    @contextmanager
    def batch(
        self,
        batch: Batch,
        parts: int | None = None,
        *,
        widest: int | None = None,
        first: int | None = None,
    ) -> Iterator[Sequence[Batch]]:
        part = self._part()
        parts = part.task.accumulate if parts is None else parts
        micros = micro_batches(batch, parts)
        if widest is not None:
            empty = Batch(batch.step, batch.start, 0, batch.total, batch.whole, batch.update)
            micros += [empty] * (min(parts, widest) - len(micros))
        self._open(batch, micros, first)
        yield micros
        part.end_batch()
        self._end_batch(batch, part)
        if first is not None:
            self._close(batch.step)

    def _open(self, batch: Batch, micros: Sequence[Batch], first: int | None) -> None:
        if first is None:
            self._losses, self._micros = {}, dict(enumerate(micros))
            self._part().begin_batch()
        else:
            self._micros.update(enumerate(micros, start=first))
            self._pinned[batch.step] = False
            self._part().engine.keep_versions().pin(batch.step)

    def _close(self, step: int) -> None:
        self._micros = {number: micro for number, micro in self._micros.items() if micro.step != step}
        del self._pinned[step]
        self._part().engine.keep_versions().unpin(step)

    def _bind(self, part: Replica, step: int, *, is_backward: bool = False) -> None:
        """Before a pass: bind the version of the parameters that its batch uses, if it pins one."""
        if step not in self._pinned:
            return
        if is_backward and not self._pinned[step]:
            self._pinned[step] = True
            part.begin_batch()
        part.engine.keep_versions().bind(step)

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
            self._bind(part, batch.step)
            made = part.forward(segment, batch, micro, self._ctx.data.source, given)
            if isinstance(made, BoundaryValues):
                return made
            self.note_micro_loss(micro, None if made is None else made.item())
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
        held, step = self._part(), self._micros[micro].step

        def run() -> Sequence[Tensor]:
            self._bind(held, step, is_backward=True)
            return held.backward(segment, micro, gradients, part)

        return self._timed(KINDS[part], self._pass(part, segment, self._micros[micro]), micro, run)

    def timed_part(
        self, way: str, share: float, micro: int, run: Callable[[], T], processor_s: Callable[[], float]
    ) -> Awaitable[T]:
        """Do a part of a pass through the whole model. Its time is this share of the pass in this cluster."""
        batch = self._micros[micro]
        one = Pass(
            _WORKS[way],
            share,
            batch.count,
            slice_samples=batch.total / len(self._ctx.workers),
            recomputes=self._learner.replica.task.recompute and way == "both",
            stage_share=share,
        )
        return self._timed(KINDS[way], one, micro, run, processor_s)

    def note_micro_loss(self, micro: int, loss: float | None) -> None:
        """Note the loss of a micro-batch. None if it was not computed."""
        batch = self._micros[micro]
        self._losses.setdefault(batch.step, []).append((batch.count, loss))

    @property
    def source(self) -> Source:
        return self._ctx.data.source

    def _end_batch(self, batch: Batch, part: Replica) -> None:
        ctx, losses = self._ctx, self._losses.pop(batch.step, [])
        # The first rank of a tensor group records the loss of all.
        if losses and self._position == 0:  # this rank has the last segment
            self._learner.note_loss(batch, _mean_loss(losses, batch.count))
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
            launches=of.launches,
            weight_bytes=of.weight_bytes,
            gradient_bytes=of.weight_bytes * self._learner.replica.holding.gradient_ratio,
            stage_share=self._stage_share(of),
        )

    def _stage_share(self, of: Segment) -> float:
        shares = [each.share for each in self.segments if each.stage == of.stage]
        return of.share / sum(shares) if any(shares) else 1 / len(shares)

    @abstractmethod
    def _timed(
        self,
        kind: int,
        one: Pass,
        micro: int,
        run: Callable[[], T],
        processor_s: Callable[[], float] = time.thread_time,
    ) -> Awaitable[T]:
        """Do a pass. Real clusters measure its time, and simulated ones set it. `kind` is the kind of the span.

        `processor_s` returns the processor time of the thread that computes.
        """

    # Parameters held by other ranks

    def collect(self, step: int, net: Net, segments: Sequence[Sequence[int]]) -> Awaitable[None]:
        return collect(self._ctx.log, self._part(), step, net, segments)


def _mean_loss(losses: Sequence[tuple[int, float | None]], samples: int) -> float | None:
    """Return the mean loss of a batch of this many samples; None if it was not computed."""
    total = 0.0
    for count, loss in losses:
        if loss is None:
            return None
        total += count / samples * loss
    return total
