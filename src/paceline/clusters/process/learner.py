"""The learning part of a context in a real process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from paceline.clusters.process.computing import BucketOperation, ComputeOperation, ProcessParts
from paceline.clusters.process.stages import ProcessStages
from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.loss_scaling import skips_update
from paceline.clusters.rank.statistics import compute_with_exchanges
from paceline.context import BUCKET_BYTES, Batch, Net
from paceline.costs.prices import ready_shares
from paceline.links.sending import SendOperation
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


class ProcessLearner(Learner["ProcessContext"]):
    """Learner that computes in the foreground, or in a thread if other work runs at the same time."""

    __slots__ = ()

    def compute(self, batch: Batch, *, weight: float = 1.0, accumulate: bool = False) -> Awaitable[float]:
        if self.statistics is not None:
            parts = ProcessParts(self._ctx, batch)
            return compute_with_exchanges(self, batch, parts, weight=weight, accumulate=accumulate)
        return ComputeOperation(self._ctx, self, batch, weight, accumulate=accumulate)

    async def gradients(
        self, batch: Batch, *, weight: float = 1.0, bucket_bytes: int = BUCKET_BYTES
    ) -> AsyncIterator[Tensor]:
        replica = self.replica
        replica.set_bucket_bytes(bucket_bytes)
        computation, order = self.compute(batch, weight=weight), replica.buckets.order()
        if isinstance(computation, ComputeOperation) and len(order) > 1:
            self._ctx.start(computation)  # in a thread, so that backward overlaps with the transfers
            for number, share in zip(order, ready_shares(replica.buckets.shares()), strict=True):
                await BucketOperation(computation, number, share)
                yield replica.bucket(number)
            await computation
        else:
            await computation
            for number in order:
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
        norm_value = await self._norm(norm)
        skips = skips_update(self._ctx, self.replica, shard, norm_value)
        if self._lends_parameters:
            await self._detach_sends()
        squares = await self._layer_squares(shard, norm_value, of, split) if split and not skips else None
        start_s = self._ctx.now()
        if self._looks:
            self._look_before_update(shard)
        if not skips:
            self.replica.apply(
                shard, norm_value, advance=advance, of=of, step=self._ctx.step, squares=squares
            )
        self._ctx.complete = self._ctx.step + 1
        self._ctx.span(Kind.UPDATE, start_s, self._ctx.now())

    async def _detach_sends(self) -> None:
        """Copy what started messages still have to send from the parameters, so that they may be overwritten."""
        begin = self.parameters.data_ptr()
        end = begin + self.parameters.nbytes
        for operation in tuple(self._ctx.waits.under_way):
            if isinstance(operation, SendOperation) and begin <= operation.address < end:
                await operation.detach()

    def _make_stages(self) -> ProcessStages:
        return ProcessStages(self._ctx, self)

    def _find_twin(self) -> ProcessContext:
        other = super()._find_twin()
        other.in_background = other.computes_in_thread = True
        return other

    def _lent(self, present: Tensor, wanted: Tensor | Literal["lent"] | None) -> Tensor | None:
        lending = self._ctx.wiring.lending
        if isinstance(wanted, str) and lending is not None and present.is_cpu:
            return None if lending.holds(present) else lending.copy(present)
        return super()._lent(present, wanted)
