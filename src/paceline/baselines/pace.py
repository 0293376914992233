"""How fast a rank of a baseline computes: as fast as it can, or slower, as the cluster says."""

from __future__ import annotations

import time

from paceline.clusters.process.context import ProcessContext
from paceline.trace import Kind

__all__ = ["Pace"]


class Pace:
    """Knows how long this rank computed in a step, writes it down, and makes a straggler late by as much as it must."""

    def __init__(self, ctx: ProcessContext) -> None:
        self._ctx = ctx
        self._factor = ctx.stragglers.factor(ctx.rank)
        self._delay = ctx.stragglers.delay_of(ctx.rank)
        self._began_s = self.ended_s = 0.0
        """When this rank last ended a stretch of computing, its slowness included."""
        # Of the processor, as in ComputeOperation: waiting for a core is not computing.
        self._processor_began_s = self._processor_ended_s = self._processor_s = 0.0

    @property
    def is_straggler(self) -> bool:
        return self._factor != 1.0 or self._delay is not None

    def begin(self) -> None:
        """A step's computing begins."""
        self._processor_s = 0.0
        self.resume()

    def resume(self) -> None:
        """Computing goes on after something else."""
        self._began_s = self._ctx.now()
        self._processor_began_s = time.thread_time()

    def note_progress(self) -> None:
        """Until now, at least, this rank has been computing."""
        self.ended_s = self._ctx.now()
        self._processor_ended_s = time.thread_time()

    def dawdle(self) -> None:
        """Be as late with this step's gradient as the cluster says: the same delay that our own strategies suffer."""
        computed_s = self._processor_s + time.thread_time() - self._processor_began_s
        extra_s = computed_s * (self._factor - 1.0)
        if self._delay is not None:
            extra_s += self._delay.draw(self._ctx.delay_rng)
        time.sleep(extra_s)
        self.note_progress()

    def end(self) -> None:
        """The stretch of computing ended at the last progress."""
        self._processor_s += self._processor_ended_s - self._processor_began_s
        self._ctx.span(Kind.COMPUTE, self._began_s, self.ended_s)
