"""Ctrl-C and SIGTERM, in a run that is kept on disk: it ends at its next step, and writes a last checkpoint.

A scheduler sends SIGTERM some time before it kills. Whoever does not want to wait sends the signal once more.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

__all__ = ["GRACE_S", "check", "stops_kept", "wanted"]

_log = logging.getLogger("paceline")

GRACE_S = 20.0
"""How long a run has to end. Schedulers commonly give 30 s."""


class _Stop:
    """The signal that has come, if one has."""

    def __init__(self) -> None:
        self.signum = 0
        self._until_s = 0.0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            raise KeyboardInterrupt
        self.signum = signum
        self._until_s = time.monotonic() + GRACE_S
        name = signal.Signals(signum).name
        _log.warning(
            "%s: the run ends at its next step and writes a last checkpoint; again to end at once", name
        )

    @property
    def is_overdue(self) -> bool:
        return self.signum != 0 and time.monotonic() > self._until_s


_current: _Stop | None = None


@contextlib.contextmanager
def stops_kept() -> Iterator[_Stop]:
    """While the run in this block goes on, the first signal asks it to end. Python hears them in the main thread."""
    global _current
    stop, signums = _Stop(), (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {signum: signal.signal(signum, stop) for signum in signums}
    outer, _current = _current, stop
    try:
        yield stop
    finally:
        _current = outer
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def wanted() -> bool:
    """Whether the run in this process is to end."""
    return _current is not None and _current.signum != 0


def check() -> None:
    """Raise KeyboardInterrupt if the run was to end and did not in time."""
    if _current is not None and _current.is_overdue:
        raise KeyboardInterrupt
