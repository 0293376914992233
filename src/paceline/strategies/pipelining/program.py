"""The program of a rank of a mesh: data x pipeline x tensor. A pipeline alone is a mesh with one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.collectives import broadcast
from paceline.context import Batch, Context, Net, Strategy
from paceline.errors import ConfigurationError
from paceline.mesh import Mesh
from paceline.strategies.pipelining.data_axis import Copies, DataAxis, SharedPieces, SharedUpdates
from paceline.strategies.pipelining.pieces import Pieces
from paceline.strategies.pipelining.segments import Segments, held_segments
from paceline.strategies.pipelining.shared_segments import SharedSegmentsOfStage
from paceline.strategies.pipelining.stage import Stage
from paceline.strategies.sharding.exchange import exchange_on

__all__ = ["InPieces", "Plan", "names_in"]

_NEWS = 2**30  # a tag of its own
_FINER = 4  # segments of a stage whose parameters come and go


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a model and its batches are parted among ranks."""

    stages: int | None = None
    """Without a number there are as many as workers, or as the model has layers: then some workers hold none."""
    data: int = 1
    tensor: int = 1
    sequence: bool = False
    """Whether a tensor group parts sequences between split layers."""
    chunks: int = 1
    microbatches: int | None = None
    """Without a number there are four for each stage."""
    order: str = "1f1b"
    cuts: Sequence[str] = ()
    zero: int = 0
    algorithm: str = "auto"
    """By which gradients are summed along the data axis."""


class InPieces(Strategy):
    """A strategy whose workers hold pieces of the model, as its plan says."""

    replicates: ClassVar[tuple[str, ...]] = ("worker",)
    cuts_model: ClassVar[bool] = True
    holds_parts: ClassVar[bool] = True

    def plan(self, workers: int) -> Plan:
        raise NotImplementedError

    def prepare(self, ctx: Context) -> None:
        _cut(ctx, self.plan(ctx.net.size))

    async def worker(self, ctx: Context) -> None:
        plan = self.plan(ctx.net.size)
        stages = _cut(ctx, plan)
        ranks = plan.data * stages * plan.tensor
        if ctx.net.rank >= ranks:
            await _look_on(ctx)
            return
        mesh = Mesh(ctx.net.split(range(ranks)), data=plan.data, pipeline=stages, tensor=plan.tensor)
        await _Rank(ctx, plan, mesh).train()


def _cut(ctx: Context, plan: Plan) -> int:
    """Cut the model; into how many stages."""
    pieces = ctx.model.pieces
    stages = plan.stages
    if stages is None:
        stages = min(ctx.net.size, max(1, pieces.most_segments // plan.chunks))
    if plan.zero == 3 and pieces.averages:
        remedy = "leave it out, or use zero=2"
        raise ConfigurationError("ema", "must not be given where parameters are shed", "a decay", remedy)
    pieces.cut(
        stages * plan.chunks,
        plan.cuts,
        finer=_FINER if plan.zero > 1 else 1,
        tensor=plan.tensor,
        sequence=plan.sequence and plan.tensor > 1,
    )
    return stages


class _Rank:
    """One rank of the mesh."""

    def __init__(self, ctx: Context, plan: Plan, mesh: Mesh) -> None:
        self._ctx = ctx
        self._plan = plan
        self._group, self._net, self._tensor = mesh["data"], mesh["pipeline"], mesh["tensor"]
        self._ranks = math.prod(mesh.axes.values())
        size = self._net.size * self._tensor.size
        row = ctx.net.split(range(self._group.rank * size, (self._group.rank + 1) * size))
        held = held_segments(ctx.model.pieces, self._net.size)
        self._segments, data = self._hold(held[self._net.rank])
        self._stage = Stage(ctx, self._net, plan.chunks, self._segments)
        once = self._tensor if plan.zero < 2 else None  # else segment by segment
        self._pieces = Pieces(ctx, row, self._net, held, data, once)

    def _hold(self, own: Sequence[int]) -> tuple[Segments, DataAxis]:
        ctx, group, zero = self._ctx, self._group, self._plan.zero
        pieces = ctx.model.pieces
        if zero > 1:
            return self._share(own, sheds=zero == 3)
        pieces.hold(own, worker=group.rank, position=self._tensor.rank)
        segments = Segments(pieces, self._tensor)
        if zero == 1 and group.size > 1:
            return segments, SharedUpdates(ctx, group)
        return segments, Copies(ctx, group, self._plan.algorithm)

    def _share(self, own: Sequence[int], *, sheds: bool) -> tuple[Segments, DataAxis]:
        ctx, group = self._ctx, self._group
        pieces = ctx.model.pieces
        position = self._tensor.rank
        shards = pieces.share(own, ranks=group.size, own=group.rank, sheds=sheds, position=position)
        self._exchange = exchange_on(ctx, group, shards, sheds=sheds)
        segments = SharedSegmentsOfStage(pieces, self._tensor, shards, self._exchange, own, sheds=sheds)
        return segments, SharedPieces(ctx, group, self._exchange)

    async def train(self) -> None:
        ctx, plan, group = self._ctx, self._plan, self._group
        if plan.zero > 1:
            await self._exchange.begin()
        async for step in ctx.rounds():
            await _follow_buffers(ctx, group)
            whole = _whole(ctx.model.data.batch_of(0, step))
            widest = _part(whole, 0, group.size).count if plan.zero > 1 else None
            batch = _part(whole, group.rank, group.size)
            microbatches = 4 * self._net.size if plan.microbatches is None else plan.microbatches
            await self._stage.compute(batch, microbatches, plan.order, widest=widest)
            await self._pieces.update()
            await self._show(step)
            if ctx.net.rank == 0:
                for onlooker in range(self._ranks, ctx.net.size):
                    await ctx.net.send(onlooker, ctx.model.gradient[:0], tag=_NEWS)

    async def _show(self, step: int) -> None:
        """The first row shows what it holds. Where rows share it, all of them bring it together first."""
        is_first = self._group.rank == 0
        if self._plan.zero == 3 and self._ctx.log.inspects(step):
            await self._segments.gather_all(keeps=is_first)
        if is_first:
            await self._pieces.show(step)


async def _follow_buffers(ctx: Context, group: Net) -> None:
    """Give every rank that holds the same pieces the buffers of the first."""
    if group.size > 1:
        for tensor in ctx.model.buffers:
            await broadcast(group, tensor, root=0)


async def _look_on(ctx: Context) -> None:
    """The run of a rank that holds nothing: it keeps step with the others, and ends where they end."""
    async for _ in ctx.rounds():
        await ctx.net.recv(0, tag=_NEWS)


def names_in(cuts: str) -> tuple[str, ...]:
    """The layers that are named in the words of a strategy."""
    return tuple(name for name in cuts.split("+") if name)


def _whole(batch: Batch) -> Batch:
    """The global batch that a worker's slice is of."""
    return Batch(batch.step, 0, batch.total, batch.total, batch.whole, batch.update)


def _part(whole: Batch, number: int, parts: int) -> Batch:
    """One of so many nearly equal slices of the global batch, as workers have them."""
    size, longer = divmod(whole.total, parts)
    start = number * size + min(number, longer)
    return Batch(whole.step, start, size + (number < longer), whole.total, whole.whole, whole.update)
