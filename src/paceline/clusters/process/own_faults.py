"""Faults that a rank applies to its own process: it becomes slow, or meets a fault at the start of a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.clusters.process.driver import LocalDriver
from paceline.clusters.process.gradient_duration import SlowedDuration
from paceline.costs.slowdowns import Slowdowns
from paceline.faults import Fault, Kill, Pause, Slow

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


class OwnFaults:
    """The faults of one rank. The driver sends the signals of faults at a time of the run."""

    def __init__(self, ctx: ProcessContext, faults: Sequence[Fault]) -> None:
        self._ctx = ctx
        self._slowdowns = Slowdowns()
        if any(isinstance(fault, Slow) for fault in faults):
            ctx.duration = SlowedDuration(ctx.duration, self._slowdowns, ctx.now)
        for fault in faults:
            if fault.step is not None:
                ctx.step_faults.setdefault(fault.step, []).append(fault)
            elif isinstance(fault, Slow):
                assert fault.at_s is not None
                self._slowdowns.add(fault.at_s, fault.seconds_s, fault.factor)

    def meet(self, fault: Fault) -> None:
        """Apply a fault now: the rank begins its step."""
        if isinstance(fault, Kill):
            os.kill(os.getpid(), signal.SIGKILL)
        elif isinstance(fault, Slow):
            self._slowdowns.add(self._ctx.now(), fault.seconds_s, fault.factor)
        elif isinstance(fault, Pause):
            assert isinstance(self._ctx.driver, LocalDriver)
            self._ctx.driver.pause(fault.seconds_s)
