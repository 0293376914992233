"""ZeRO: synchronous data parallelism in which workers shard the training state instead of replicating it.

Stage 1 shards the optimizer state, stage 2 also the gradients, stage 3 also the parameters. In stage 3 the parameters
of a segment are gathered before it is computed and freed afterwards. The next segment is gathered during the
computation. PyTorch's FSDP is stage 3.

When: The training state is too large for one worker, but the largest layers are not.
Cost, Y parameters and N workers: each sends (N - 1)/N times 2 Y values, 3 Y in stage 3. In float32 with Adam, 16 Y
bytes become 8 Y + 8 Y/N, 4 Y + 12 Y/N and 16 Y/N, plus the gathered segments in stage 3.
Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from paceline.collectives import gradient_norm
from paceline.context import Context, Hooks, Segment, StateAt, Strategy
from paceline.errors import ConfigurationError
from paceline.strategies.shared.buffers import follow_buffers
from paceline.strategies.shared.codec import gradient_codec
from paceline.strategies.shared.search_space import tried
from paceline.strategies.shared.sharding.exchange import exchange_on
from paceline.strategies.shared.sharding.shared_units import SharedUnits
from paceline.strategies.shared.sharding.updates import share_by_memory, share_by_messages

_STAGES = (1, 2, 3)
SEGMENTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero(Strategy):
    """Workers shard optimizer state, gradients (stage 2) and parameters (stage 3)."""

    replicates: ClassVar[tuple[str, ...]] = ("worker",)
    cuts_model: ClassVar[bool] = True

    stage: int = field(
        default=3,
        metadata={
            "help": "1 shards optimizer state, 2 also gradients, 3 also parameters",
            "tries": tried(*_STAGES, leads=True),
        },
    )
    segments: int | None = field(
        default=None,
        metadata={
            "help": f"number of segments to gather and free; default: {SEGMENTS}, or the number of layers",
            "tries": tried(4, 16, 32),
        },
    )
    hooks: bool = field(
        default=False,
        metadata={"help": "gather parameters by module hooks; default: only if the model cannot be traced"},
    )
    microbatches: int | None = field(
        default=None,
        metadata={
            "help": "number of micro-batches of a worker's slice; default: the task's accumulate",
            "tries": tried(2, 4, 8),
        },
    )

    def __post_init__(self) -> None:
        if self.stage not in _STAGES:
            raise ConfigurationError("stage", "must be 1, 2 or 3", self.stage, "3 shards the most")
        for name in ("segments", "microbatches", "hooks"):
            value = getattr(self, name)
            if value and self.stage == 1:
                raise ConfigurationError(name, "must be left out in stage 1", value, "leave it out")
            if value is not None and value < 1 and name != "hooks":
                raise ConfigurationError(name, "must be at least 1", value, "leave it out")

    @property
    def state_at(self) -> StateAt:
        return "shards"

    def prepare(self, ctx: Context) -> None:
        if self.stage > 1:
            self._cut(ctx)

    @property
    def holds_parts(self) -> bool:
        """Whether workers hold parts of the model. False in stage 1: each worker has all parameters and gradients."""
        return self.stage > 1

    def divides_batch(self, workers: int) -> bool:
        return workers > 1 or self.microbatches not in (None, 1)

    def syncs_batch_norm(self, workers: int) -> bool:
        return self.microbatches in (None, 1)

    async def worker(self, ctx: Context) -> None:
        if self.stage > 1:
            await self._share_segments(ctx)
        elif ctx.net.shares_memory:
            await share_by_memory(ctx)
        else:
            await share_by_messages(ctx)

    async def _share_segments(self, ctx: Context) -> None:
        net, model, frees_parameters = ctx.net, ctx.model, self.stage == 3
        segments = self._cut(ctx)
        shards = model.stages.hold(
            range(len(segments)), worker=net.rank, shared_by=net.size, frees_parameters=frees_parameters
        )
        codec = gradient_codec(ctx, "none")
        exchange = exchange_on(ctx, net, shards, frees_parameters=frees_parameters, codec=codec)
        shared = SharedUnits(ctx, net, segments, shards, exchange, frees_parameters=frees_parameters)
        await exchange.begin()
        async for batch in ctx.batches():
            await follow_buffers(ctx)
            await shared.compute(batch, self.microbatches)
            await model.apply(norm=partial(gradient_norm, net, model.gradient))
            await exchange.updated()
            if ctx.log.inspects(batch.step):
                await shared.gather_all(keeps=net.rank == 0)

    def _cut(self, ctx: Context) -> Sequence[Segment]:
        hooks: Hooks = "always" if self.hooks else "fallback"
        return ctx.model.stages.cut(1, finer=self.segments or SEGMENTS, hooks=hooks)
