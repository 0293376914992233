"""The model in segments in a real process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline.clusters.process.gradient_duration import pad_to_duration
from paceline.clusters.rank.stages import RankStages
from paceline.costs.prices import Pass
from paceline.links import clock
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext  # noqa: F401

T = TypeVar("T")


class ProcessStages(RankStages["ProcessContext"]):
    """Segments of a real rank. A pass takes its real time, or the time set by the cluster."""

    __slots__ = ()

    async def _timed(
        self,
        kind: int,
        one: Pass,
        micro: int,
        run: Callable[[], T],
        processor_s: Callable[[], float] = time.thread_time,
    ) -> T:
        ctx, duration = self._ctx, self._ctx.duration
        start_s, began_s = ctx.now(), clock.now()
        least_s, processor_start_s = duration.begin_pass(one), processor_s()
        made = run()
        took_s, worked_s = clock.now() - began_s, processor_s() - processor_start_s
        pad_to_duration(duration.left_s(least_s, took_s, worked_s), ctx.deadline_s)
        ctx.span(Kind(kind), start_s, ctx.now(), micro)
        return made
