"""Ctrl-C, while a driver starts and ends processes: heard where the driver waits, kept for later everywhere else.

Python raises KeyboardInterrupt between any two instructions. One between the start of a process and the note of its
number would lose the process; a second one would break off the cleaning up after the first.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["interrupts_heard", "interrupts_kept"]


class _Keeper:
    """Stands in for the handler of SIGINT, and calls it only where it may raise."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler
        self.is_hearing = False
        self.has_kept = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if not self.is_hearing:
            self.has_kept = True
            return
        self.is_hearing = False  # the cleaning up after what the handler raises is not interrupted again
        self._handler(signum, frame)
        self.is_hearing = True  # it has not raised

    def deliver(self) -> None:
        """Raise now what was kept."""
        if self.has_kept:
            self.has_kept = False
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Keep interrupts until the end of this block, or until the next block of `interrupts_heard`."""
    handler = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or not callable(handler):  # Python raises in the main thread alone
        yield
        return
    keeper = _Keeper(handler)
    signal.signal(signal.SIGINT, keeper)
    try:
        yield
    except KeyboardInterrupt:
        keeper.has_kept = False  # the user who pressed Ctrl-C twice is answered once
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is keeper:  # else the user's code has set another
            signal.signal(signal.SIGINT, handler)
        keeper.deliver()


@contextlib.contextmanager
def interrupts_heard() -> Iterator[None]:
    """Let interrupts raise in this block: for waits, and for the user's code. Not to be nested."""
    keeper = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or not isinstance(keeper, _Keeper):
        yield
        return
    keeper.is_hearing = True
    try:
        keeper.deliver()
        yield
    finally:
        keeper.is_hearing = False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
