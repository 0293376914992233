"""The learning part of a context whose gradients come from a user's loop."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from paceline.clusters.process.learner import ProcessLearner
from paceline.context import BUCKET_BYTES, Batch, Net
from paceline.errors import GradientNotFiniteError
from paceline.loop.engine import LoopEngine
from paceline.loop.facts_table import FACTS, FactsTable
from paceline.model.replica import Replica
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.loop.context import LoopContext


class LoopLearner(ProcessLearner):
    """Learner that takes each gradient from the user's loop."""

    __slots__ = ("table",)

    def __init__(self, ctx: LoopContext, replica: Replica | None) -> None:
        super().__init__(ctx, replica)
        self.table: FactsTable | None = None
        """Facts about received gradients, on a rank that applies gradients of others. None on other ranks."""

    @property
    def _loop_context(self) -> LoopContext:
        return cast("LoopContext", self._ctx)

    @property
    def engine(self) -> LoopEngine:
        return cast(LoopEngine, self.replica.engine)

    def _replica_of_twin(self) -> Replica:
        return self._loop_context.loop.own_replica(self._ctx.job, self._ctx.rank)

    def compute(
        self, batch: Batch, *, weight: float = 1.0, accumulate: bool = False
    ) -> Coroutine[Any, Any, float]:
        return self._take(batch, weight, accumulate)

    async def _take(self, batch: Batch, weight: float, accumulate: bool) -> float:
        """Take the gradient that the user's loop has delivered. Send its step facts to the ranks that apply it."""
        context = self._loop_context
        count, delivery = batch.count, context.delivery
        self.replica.compute(batch, context.data.source, weight=weight, accumulate=accumulate)
        if self.replica.not_finite is not None and count:
            raise GradientNotFiniteError(context.rank, context.step, self.replica.not_finite)
        context.span(Kind.COMPUTE, delivery.start_s, context.now())
        for server in context.serving:
            await context.net.send(server, delivery.facts.pack(), tag=FACTS)
        loss = delivery.facts.loss
        self._ctx.outcome.losses.append((batch.step, loss, count))
        if delivery.logged and count:
            self._ctx.outcome.logged.append((self._ctx.step, count, delivery.logged))
        return loss if count else math.nan

    async def gradients(
        self, batch: Batch, *, weight: float = 1.0, bucket_bytes: int = BUCKET_BYTES
    ) -> AsyncIterator[Tensor]:
        replica = self.replica
        replica.set_bucket_bytes(bucket_bytes)
        await self.compute(batch, weight=weight)
        for number in replica.buckets.order():
            yield replica.bucket(number)

    async def apply(
        self,
        shard: slice | None = None,
        *,
        norm: Callable[[], Awaitable[float]] | None = None,
        advance: bool = True,
        of: Sequence[Batch] = (),
        split: Sequence[Net] = (),
    ) -> None:
        context = self._loop_context
        facts = context.delivery.facts if self.table is None else self.table.of_update(of)
        if math.isfinite(facts.clip_norm):
            self.engine.clip(facts.clip_norm, shard, await norm() if norm is not None else None)
        if self._lends_parameters:
            await self._detach_sends()
        start_s = context.now()
        self.engine.set_options(context.loop.options, facts, shard)
        self.replica.apply(shard, advance=advance, of=of, step=context.step)
        context.span(Kind.UPDATE, start_s, context.now())
