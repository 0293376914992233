"""BatchNorm statistics that workers share (`Task(sync_batch_norm=True)`): exchanges in the middle of a pass."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from paceline.clusters.rank.rank import Rank
from paceline.collectives import all_gather
from paceline.context import Batch
from paceline.costs.prices import ready_shares
from paceline.model.compiling import is_compiled
from paceline.model.hooks.batch_norm import SharedStatistics, StatisticsEvent, filled
from paceline.model.hooks.pass_thread import PassThread
from paceline.model.replica import Replica

if TYPE_CHECKING:
    from paceline.clusters.rank.learner import Learner

T = TypeVar("T")


class GradientParts(Protocol):
    """The seconds of one gradient, spent in parts."""

    def part(self, share: float, run: Callable[[], T], processor_s: Callable[[], float]) -> Awaitable[T]:
        """Do a part of the gradient, in the time that this share of it takes in this cluster."""
        ...


class StatisticsExchange:
    """The statistics that one worker shares with the others."""

    def __init__(self, ctx: Rank, replica: Replica) -> None:
        # In this order the workers are another group than the one in which the strategy may exchange at the same time.
        self._net = ctx.net.split(tuple(reversed(ctx.workers)))
        self.layers = SharedStatistics(replica.module, self._net.size, self._net.rank)

    async def complete(self, event: StatisticsEvent) -> None:
        """Fill in the statistics of the other workers."""
        if self._net.size > 1:
            await all_gather(self._net, event.table)


async def compute_with_exchanges(
    learner: Learner[Any], batch: Batch, parts: GradientParts, *, weight: float, accumulate: bool
) -> float:
    """Compute a gradient as `Model.compute` does. Workers exchange the statistics of each BatchNorm layer."""
    replica, source, exchange = learner.replica, learner._ctx.data.source, learner.statistics
    assert exchange is not None, "the task shares statistics"

    def work(park: Callable[[StatisticsEvent], None]) -> Iterator[float]:
        with exchange.layers.sharing(park, batch.weight):
            loss = replica.compute(filled(batch), source, weight=weight, accumulate=accumulate)
        if loss is not None:
            yield loss

    eager, left = replica.task.compile or is_compiled(replica.module), 1.0
    with closing(PassThread(work, eager=eager)) as run:
        shares = _shares(exchange.layers.count)
        event: StatisticsEvent | None
        while True:
            share = min(left, next(shares, 0.0))
            left -= share
            event = await parts.part(share, run.advance, lambda: run.processor_s)
            if event is None:
                break
            await exchange.complete(event)
    await parts.part(left, _nothing, time.thread_time)
    return learner.note_loss(batch, run.losses[0] if run.losses else None)


def _shares(layers: int) -> Iterator[float]:
    """Yield the share of a gradient's time before each exchange. Each pass is divided into equal parts."""
    forward, end = (share / (layers + 1) for share in ready_shares([0.0, 1.0]))
    backward = end - forward
    yield from [forward] * layers
    if layers:
        yield forward + backward
    yield from [backward] * (layers - 1)


def _nothing() -> None:
    return None
