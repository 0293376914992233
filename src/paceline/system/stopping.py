"""Ctrl-C, SIGTERM and a time limit in a run with checkpoints: it ends at its next step and writes a last checkpoint.

A scheduler sends SIGTERM some time before it kills a process. A second signal ends the run immediately.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from collections.abc import Iterator

from paceline.system import interrupts

_log = logging.getLogger("paceline")

GRACE_S = 20.0
"""Seconds that a run has to end after the first signal. Schedulers commonly give 30 s."""


class _Stop:
    """The request to end a run, made by the first signal or by the clock."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is the time on the monotonic clock at which the run must end."""
        self.signum = 0
        self._limit_s = limit_s
        self._until_s = 0.0
        self._is_announced = False

    def request(self, signum: int) -> None:
        """Record the request. The signal handler calls this. It writes no text: the signal may have interrupted a
        write."""
        self._until_s = time.monotonic() + GRACE_S
        self.signum = signum

    def announce(self) -> None:
        """Log a warning for the user, once."""
        if not self._is_announced:
            self._is_announced = True
            name = signal.Signals(self.signum).name if self.signum else "max_seconds"
            _log.warning(
                "%s: the run ends at its next step and writes a last checkpoint; repeat to end immediately",
                name,
            )

    @property
    def is_requested(self) -> bool:
        return self.signum != 0 or time.monotonic() >= self._limit_s

    @property
    def is_overdue(self) -> bool:
        return self.signum != 0 and time.monotonic() > self._until_s


_current: _Stop | None = None


@contextlib.contextmanager
def stops_kept(limit_s: float = math.inf) -> Iterator[_Stop]:
    """Treat the first signal in this block, and the end of the time, as a stop request.

    See `paceline.system.interrupts` for signals. They are not handled outside of the main thread.
    """
    global _current
    stop = _Stop(limit_s)
    with interrupts.stopping_first(stop) as is_installed:
        if not is_installed and limit_s == math.inf:
            yield stop
            return
        outer, _current = _current, stop
        try:
            yield stop
        finally:
            _current = outer


def wanted() -> bool:
    """Return whether the run in this process has been asked to stop."""
    stop = _current
    if stop is None or not stop.is_requested:
        return False
    stop.announce()
    return True


def check() -> None:
    """Raise KeyboardInterrupt if a requested stop is overdue, or if a signal was recorded."""
    if _current is not None and _current.is_overdue:
        raise KeyboardInterrupt
    interrupts.safe_point()
