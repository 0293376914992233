"""The compute time of a rank in a baseline, with the slowdown of an emulated straggler."""

from __future__ import annotations

import time

from paceline.clusters.process.context import ProcessContext
from paceline.trace import Kind


class ComputeClock:
    """Measures and records this rank's compute time in a step, and delays a straggler."""

    def __init__(self, ctx: ProcessContext) -> None:
        self._ctx = ctx
        self._factor = ctx.stragglers.factor(ctx.rank)
        self._delay = ctx.stragglers.delay_of(ctx.rank)
        self._began_s = self.ended_s = 0.0
        """End of this rank's last interval of computing, including its slowdown."""
        # CPU time, as in ComputeOperation: waiting for a core is not computing.
        self._processor_began_s = self._processor_ended_s = self._processor_s = 0.0

    @property
    def is_straggler(self) -> bool:
        return self._factor != 1.0 or self._delay is not None

    def begin(self) -> None:
        """Start the computing of a step."""
        self._processor_s = 0.0
        self.resume()

    def resume(self) -> None:
        """Continue computing after an interruption."""
        self._began_s = self._ctx.now()
        self._processor_began_s = time.thread_time()

    def note_progress(self) -> None:
        """Record that this rank was computing until now."""
        self.ended_s = self._ctx.now()
        self._processor_ended_s = time.thread_time()

    def pad_to_duration(self) -> None:
        """Delay this step's gradient as the cluster specifies, by the same time as for Paceline's strategies."""
        computed_s = self._processor_s + time.thread_time() - self._processor_began_s
        extra_s = computed_s * (self._factor - 1.0)
        if self._delay is not None:
            extra_s += self._delay.draw(self._ctx.delay_rng)
        time.sleep(extra_s)
        self.note_progress()

    def end(self) -> None:
        """End the interval of computing at the last recorded progress."""
        self._processor_s += self._processor_ended_s - self._processor_began_s
        self._ctx.span(Kind.COMPUTE, self._began_s, self.ended_s)
