"""The program of a rank in a data x pipeline x tensor mesh. A pipeline alone is a mesh with one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.collectives import broadcast
from paceline.collectives.mesh import Mesh
from paceline.context import Batch, Context, Net, Segment, StateAt, Strategy
from paceline.errors import ConfigurationError
from paceline.schedules.pipeline import CONTINUOUS, check_order
from paceline.strategies.shared.pipelining.continuous import ContinuousStage
from paceline.strategies.shared.pipelining.data_axis import Copies, DataAxis, ShardedMeshUpdate, SharedUpdates
from paceline.strategies.shared.pipelining.mesh_update import MeshUpdate
from paceline.strategies.shared.pipelining.segments import Segments, held_segments
from paceline.strategies.shared.pipelining.stage import Stage
from paceline.strategies.shared.pipelining.zero_stage import ZeroStage
from paceline.strategies.shared.sharding.exchange import exchange_on

_NEWS = 2**30  # a message tag that no other message uses
FINER = 4  # segments per stage if parameters are gathered and freed by segment


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a model and its batches are divided among ranks."""

    stages: int | None = None
    """Number of stages. None for one per worker, or one per layer if there are fewer layers than workers. Some
    workers then hold no stage."""
    data: int = 1
    tensor: int = 1
    sequence: bool = False
    """Whether a tensor group shards the sequence between split layers."""
    chunks: int = 1
    microbatches: int | None = None
    """Number of micro-batches. None for four per stage."""
    order: str = "1f1b"
    cuts: Sequence[str] = ()
    zero: int = 0
    algorithm: str = "auto"
    """All-reduce algorithm for gradients along the data axis."""
    codec: str = "none"
    """Encoding of gradients along the data axis."""

    def microbatches_of(self, stages: int) -> int:
        """Return the number of micro-batches of a row."""
        return 4 * stages if self.microbatches is None else self.microbatches


class SegmentedStrategy(Strategy):
    """A strategy in which workers hold parts of the model, as its plan defines."""

    cuts_model: ClassVar[bool] = True
    holds_parts: ClassVar[bool] = True

    @property
    def replicates(self) -> Sequence[str]:
        return ("worker",)

    @property
    def state_at(self) -> StateAt:
        return "" if self.plan(1).order in CONTINUOUS else "shards"

    def plan(self, workers: int) -> Plan:
        raise NotImplementedError

    def check_left(self, workers: int) -> None:
        """Raise an error if a run cannot continue with `workers` workers.

        Workers that are too few for another row of the mesh look on.
        """
        plan = self.plan(workers)
        row = (plan.stages or 1) * plan.tensor
        if workers < row:
            raise ConfigurationError("workers", f"must be at least {row}", workers, "use a smaller mesh")
        stages = workers if plan.stages is None else plan.stages
        check_order(plan.order, stages, plan.microbatches_of(stages), plan.chunks)

    def syncs_batch_norm(self, workers: int) -> bool:
        return not self.divides_batch(workers)

    def divides_batch(self, workers: int) -> bool:
        plan = self.plan(workers)
        return plan.data > 1 or plan.microbatches != 1

    def steps_ahead(self, workers: int) -> int:
        order = CONTINUOUS.get(self.plan(workers).order)
        return 0 if order is None else order.steps_ahead(workers)

    def prepare(self, ctx: Context) -> None:
        _cut(ctx, self.plan(ctx.net.size))

    async def worker(self, ctx: Context) -> None:
        plan = self.plan(ctx.net.size)
        segments = _cut(ctx, plan)
        stages = (segments[-1].stage + 1) // plan.chunks
        ranks = plan.data * stages * plan.tensor
        if ctx.net.rank >= ranks:
            await _look_on(ctx)
            return
        mesh = Mesh(ctx.net.split(range(ranks)), data=plan.data, pipeline=stages, tensor=plan.tensor)
        await _Rank(ctx, plan, mesh, segments).train()


def _cut(ctx: Context, plan: Plan) -> Sequence[Segment]:
    stages = ctx.net.size if plan.stages is None else plan.stages
    return ctx.model.stages.cut(
        stages,
        plan.cuts,
        chunks=plan.chunks,
        fewer=plan.stages is None,
        finer=FINER if plan.zero > 1 else 1,
        tensor=plan.tensor,
        sequence=plan.sequence and plan.tensor > 1,
        passes=plan.data * plan.microbatches_of(stages),
    )


class _Rank:
    """One rank of the mesh."""

    def __init__(self, ctx: Context, plan: Plan, mesh: Mesh, segments: Sequence[Segment]) -> None:
        self._ctx = ctx
        self._plan = plan
        self._cut = segments
        self._group, self._net, self._tensor = mesh["data"], mesh["pipeline"], mesh["tensor"]
        self._ranks = math.prod(mesh.axes.values())
        size = self._net.size * self._tensor.size
        row = ctx.net.split(range(self._group.rank * size, (self._group.rank + 1) * size))
        held = held_segments(segments, self._net.size)
        stages = [{name for s in own for name in segments[s].parameters} for own in held]
        self._has_tied = sum(map(len, stages)) > len(set[str]().union(*stages))
        self._segments, data = self._hold(held[self._net.rank])
        self._stage = Stage(ctx, self._net, plan.chunks, self._segments)
        self._continuous: ContinuousStage | None = None
        if plan.order in CONTINUOUS:
            parts = plan.order, plan.microbatches_of(self._net.size), self._whole_batch
            self._continuous = ContinuousStage(ctx, self._net, self._stage, *parts)
        # With ZeRO 2 and 3 partial gradients are summed by segment.
        self._update = MeshUpdate(
            ctx, row, self._net, segments, held, data, self._tensor, sums_partial=plan.zero < 2
        )

    def _hold(self, own: Sequence[int]) -> tuple[Segments, DataAxis]:
        ctx, group, zero = self._ctx, self._group, self._plan.zero
        stages, tensor = ctx.model.stages, self._tensor
        if zero > 1:
            return self._share(own, frees_parameters=zero == 3)
        stages.hold(own, worker=group.rank, position=tensor.rank)
        segments = Segments(stages, self._cut, tensor)
        if zero == 1 and group.size > 1:
            return segments, SharedUpdates(ctx, group)
        is_split = tensor.size > 1 or self._has_tied
        return segments, Copies(ctx, group, self._plan.algorithm, self._plan.codec, is_split=is_split)

    def _share(self, own: Sequence[int], *, frees_parameters: bool) -> tuple[Segments, DataAxis]:
        ctx, group, tensor = self._ctx, self._group, self._tensor
        frees: dict[str, bool] = {"frees_parameters": frees_parameters}
        shards = ctx.model.stages.hold(
            own, worker=group.rank, position=tensor.rank, shared_by=group.size, **frees
        )
        self._exchange = exchange_on(ctx, group, shards, frees_parameters=frees_parameters)
        segments = ZeroStage(ctx.model.stages, self._cut, tensor, shards, self._exchange, own, **frees)
        return segments, ShardedMeshUpdate(ctx, group, self._exchange)

    async def train(self) -> None:
        ctx = self._ctx
        if self._plan.zero > 1:
            await self._exchange.begin()
        async for step in ctx.rounds():
            if self._continuous is None:
                await self._compute(step)
            else:
                await self._continuous.compute(step)
            await self._update.update()
            await self._collect(step)
            if ctx.net.rank == 0:
                for onlooker in range(self._ranks, ctx.net.size):
                    await ctx.net.send(onlooker, ctx.model.gradient[:0], tag=_NEWS)

    async def _compute(self, step: int) -> None:
        """Compute the gradient of this rank's segments for its row's part of the batch."""
        plan, group = self._plan, self._group
        await _follow_buffers(self._ctx, group)
        whole = self._whole_batch(step)
        widest = _part(whole, 0, group.size).count if plan.zero > 1 else None
        microbatches = plan.microbatches_of(self._net.size)
        batch = _part(whole, group.rank, group.size)
        await self._stage.compute(batch, microbatches, plan.order, widest=widest)

    def _whole_batch(self, step: int) -> Batch:
        return _whole(self._ctx.batch_of(0, step))

    async def _collect(self, step: int) -> None:
        """Collect the model on the first row. If rows shard the parameters, all rows gather them first."""
        is_first = self._group.rank == 0
        if self._plan.zero == 3 and self._ctx.log.inspects(step):
            await self._segments.gather_all(keeps=is_first)
        if is_first:
            await self._update.collect(step)


async def _follow_buffers(ctx: Context, group: Net) -> None:
    """Broadcast the buffers of the first rank to all ranks that hold the same segments."""
    if group.size > 1:
        for tensor in ctx.model.buffers:
            await broadcast(group, tensor, root=0)


async def _look_on(ctx: Context) -> None:
    """Run a rank that holds no segments: it waits for a message in every step, and ends with the others."""
    async for _ in ctx.rounds():
        await ctx.net.recv(0, tag=_NEWS)


def names_in(cuts: str) -> tuple[str, ...]:
    """Return the layer names in a `cuts` option."""
    return tuple(name for name in cuts.split("+") if name)


def _whole(batch: Batch) -> Batch:
    """Return the global batch of a worker's slice."""
    return Batch(batch.step, 0, batch.total, batch.total, batch.whole, batch.update)


def _part(whole: Batch, number: int, parts: int) -> Batch:
    """Return slice `number` of `parts` nearly equal slices of the global batch, like the slices of workers."""
    size, longer = divmod(whole.total, parts)
    start = number * size + min(number, longer)
    return Batch(whole.step, start, size + (number < longer), whole.total, whole.whole, whole.update)
