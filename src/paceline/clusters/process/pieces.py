"""The model in segments, in a real process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline.clusters.process.pace import dawdle
from paceline.clusters.rank.pieces import RankPieces
from paceline.costs.prices import Pass
from paceline.links import clock
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext  # noqa: F401

__all__ = ["ProcessPieces"]

T = TypeVar("T")


class ProcessPieces(RankPieces["ProcessContext"]):
    """A pass takes what it takes, or as long as the cluster's description says."""

    __slots__ = ()

    async def _timed(self, kind: int, one: Pass, micro: int, run: Callable[[], T]) -> T:
        ctx, pace = self._ctx, self._ctx.pace
        start_s, began_s = ctx.now(), clock.now()
        least_s, processor_start_s = pace.begin_pass(one), time.thread_time()
        made = run()
        took_s, processor_s = clock.now() - began_s, time.thread_time() - processor_start_s
        dawdle(pace.left_s(least_s, took_s, processor_s), ctx.deadline_s)
        ctx.span(Kind(kind), start_s, ctx.now(), micro)
        return made
