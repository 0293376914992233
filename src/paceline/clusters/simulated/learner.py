"""The learning part of a context in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.loss_scaling import skips_update
from paceline.clusters.rank.statistics import compute_with_exchanges
from paceline.clusters.simulated.events import ComputeEvent, SimulatedParts, WorkTimer
from paceline.clusters.simulated.stages import SimulatedStages
from paceline.context import BUCKET_BYTES, Batch, Net
from paceline.costs.prices import Work, ready_shares
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE, pack_span

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext  # noqa: F401

_UPDATE = int(Kind.UPDATE)


class SimulatedLearner(Learner["SimulatedContext"]):
    """Learner in virtual time. The mathematics is real or left out."""

    __slots__ = ()

    def compute(self, batch: Batch, *, weight: float = 1.0, accumulate: bool = False) -> Awaitable[float]:
        if self.statistics is not None:
            parts = SimulatedParts(self._ctx, batch)
            return compute_with_exchanges(self, batch, parts, weight=weight, accumulate=accumulate)
        return ComputeEvent(self._ctx, batch, weight, accumulate=accumulate)

    async def gradients(
        self, batch: Batch, *, weight: float = 1.0, bucket_bytes: int = BUCKET_BYTES
    ) -> AsyncIterator[Tensor]:
        ctx, replica = self._ctx, self.replica
        replica.set_bucket_bytes(bucket_bytes)
        buckets = replica.buckets
        if self.statistics is not None:
            await self.compute(batch, weight=weight)
            for number in buckets.order():
                yield replica.bucket(number)
            return
        computation = ComputeEvent(ctx, batch, weight)
        ctx.start(computation)
        for number, ready in zip(buckets.order(), ready_shares(buckets.shares()), strict=True):
            waits = computation.reach(ready) if number else computation
            if waits is not None:
                await waits
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
        ctx = self._ctx
        norm_value = await self._norm(norm)
        skips = skips_update(ctx, self.replica, shard, norm_value)
        squares = await self._layer_squares(shard, norm_value, of, split) if split and not skips else None
        start_s = ctx.kernel.now
        if self._looks:
            self._look_before_update(shard)
        if not skips:
            self.replica.apply(shard, norm_value, advance=advance, of=of, step=ctx.step, squares=squares)
        ctx.complete = ctx.step + 1
        update_s = self._update_s(shard) if ctx.price.charges_updates else 0.0
        if update_s:
            await WorkTimer(ctx, update_s)
        ctx.record_packed(pack_span(_UPDATE, start_s, ctx.kernel.now, -1, 0, ctx.step, NO_MESSAGE))

    def _update_s(self, shard: slice | None) -> float:
        replica = self.replica
        changed = replica.gradient.numel() if shard is None else shard.stop - shard.start
        update_s: float = self._ctx.price.seconds(Work.UPDATE, 0, changed * replica.layout.dtype.itemsize)
        return update_s

    def _make_stages(self) -> SimulatedStages:
        return SimulatedStages(self._ctx, self)
