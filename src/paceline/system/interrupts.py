"""Ctrl-C during a run: recorded when it arrives, delivered at the next safe point.

Python calls the handler of a signal between any two instructions of the main thread. An exception raised there can be
lost, because garbage-collection callbacks, weakref callbacks and `__del__` ignore exceptions. It can also lose a
process that was started a moment ago. So during a run the handler of SIGINT only sets a flag. `safe_point` then calls
the handler that was installed before the run. Python's own handler raises KeyboardInterrupt.

User code in the driver (model factories, data, callbacks) has no safe points. A second SIGINT is delivered there
immediately. In other threads, the functions of this module do nothing: Python handles signals in the main thread.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

_Handler = Callable[[int, FrameType | None], Any]


class Stop(Protocol):
    """The request to end a run at its next step. The first signal makes this request."""

    signum: int
    """The signal that was received; 0 if none."""

    def request(self, signum: int) -> None: ...


class _State:
    """The state of signals in this process. Only the main thread changes it."""

    __slots__ = ("is_protected", "pending", "previous", "stop")

    def __init__(self) -> None:
        self.pending = False
        """Whether a signal was recorded and not delivered yet. Cheap to read: for loops that call `safe_point`."""
        self.is_protected = False
        """Whether repeated signals wait for a safe point too."""
        self.previous: _Handler | None = None
        """The handler of SIGINT from before the run; None outside of runs."""
        self.stop: Stop | None = None


state = _State()


def safe_point() -> None:
    """Deliver a recorded signal, if there is one: this usually raises KeyboardInterrupt."""
    if state.pending and _in_main_thread():
        state.pending = False
        _deliver(sys._getframe())


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record SIGINT in this block, and deliver it at safe points. May be nested; usable as a decorator.

    The beginning of a nested block and the end of every block are safe points. A handler that is not a function (the
    signal is ignored, or ends the process) stays.
    """
    previous = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or not callable(previous):
        yield
        return
    if previous is not _handle:
        with _installed(previous):
            yield
        return
    safe_point()
    with _answered_once():
        yield
    safe_point()


@contextlib.contextmanager
def protected() -> Iterator[None]:
    """Record SIGINT. Deliver it at safe points only, even if it is sent repeatedly."""
    with recorded(), _protection(True):
        yield


@contextlib.contextmanager
def unprotected() -> Iterator[None]:
    """Deliver a second SIGINT immediately: for user code and for waits inside a `protected` block.

    The beginning and the end of the block are safe points.
    """
    safe_point()
    with _protection(False), _answered_once():
        yield
    safe_point()


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as SIGINT in this block: for commands that show partial results when they end early."""
    if not _in_main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


@contextlib.contextmanager
def stopping_first(stop: Stop) -> Iterator[bool]:
    """Let the first SIGINT or SIGTERM of this block request a stop. The second is delivered as KeyboardInterrupt.

    Yields whether signals are handled here: not outside of the main thread.
    """
    if not _in_main_thread():
        yield False
        return
    safe_point()
    before = {signum: signal.signal(signum, _handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    outer, state.stop = state.stop, stop
    try:
        with _answered_once():
            yield True
    finally:
        state.stop = outer
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        if state.previous is None:  # the process ignored SIGINT before this block
            state.pending = False


def _handle(signum: int, frame: FrameType | None) -> None:
    """The handler of SIGINT during a run. It raises no exception, unless the signal is repeated in user code."""
    stop = state.stop
    if stop is not None and not stop.signum:
        stop.request(signum)
        return
    is_repeated = state.pending or stop is not None
    state.pending = True  # until it is handled: an exception raised here may be lost
    if is_repeated and not state.is_protected:
        _deliver(frame)


def _deliver(frame: FrameType | None) -> None:
    if state.stop is not None or state.previous is None:
        raise KeyboardInterrupt
    state.previous(signal.SIGINT, frame)


@contextlib.contextmanager
def _installed(previous: _Handler) -> Iterator[None]:
    outer, state.previous = state.previous, previous
    signal.signal(signal.SIGINT, _handle)
    try:
        with _answered_once():
            yield
    finally:
        # Otherwise the user's code has installed another handler.
        if signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, previous)
        state.previous = outer
        is_pending, state.pending = state.pending, False
        if is_pending:
            previous(signal.SIGINT, sys._getframe())


@contextlib.contextmanager
def _answered_once() -> Iterator[None]:
    """Discard further signals when a KeyboardInterrupt leaves this block: pressing Ctrl-C twice raises one
    exception."""
    try:
        yield
    except KeyboardInterrupt:
        if _in_main_thread():
            state.pending = False
        raise


@contextlib.contextmanager
def _protection(wanted: bool) -> Iterator[None]:
    if not _in_main_thread():
        yield
        return
    outer, state.is_protected = state.is_protected, wanted
    try:
        yield
    finally:
        state.is_protected = outer


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
