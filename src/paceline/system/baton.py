"""A computation in its own thread that alternates with its caller: only one of the two runs at any time.

A hook of a module or of autograd cannot await. It can park the thread of its computation instead. The caller then
runs, makes its awaits, and resumes the computation. The two never access data at the same time.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.errors import Cancelled

T = TypeVar("T")


class Baton(Generic[T]):
    """Control, passed between a computation and its caller."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        """`work` starts with the first `resume`. It inherits the caller's context variables."""
        self._work = work
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._parked: T | None = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        self._is_running = self._has_ended = False
        self.processor_s = 0.0
        """Processor time of the computation's thread so far."""
        context = contextvars.copy_context()
        # A daemon thread, because a process that ends while the computation is parked must not wait for it.
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)

    def resume(self) -> T | None:
        """Run the computation until it parks or ends.

        Return the value that the computation passed when it parked. None if it has ended.
        """
        self._continue()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._parked

    def park(self, value: T) -> None:
        """Pass control to the caller until it resumes. Call it in the computation, from any of its threads."""
        if self._is_cancelled:  # raised again if the computation has caught `Cancelled`
            raise Cancelled
        self._parked = value
        self._note_time()
        self._back.release()
        self._go.acquire()
        self._parked = None
        if self._is_cancelled:
            raise Cancelled

    def close(self) -> None:
        """End the computation: raise `Cancelled` where it is parked, and wait until its thread has ended."""
        self._is_cancelled = True
        if self._thread.ident is None:
            return
        if self._is_running:  # a signal has interrupted `resume`
            self._wait()
        while not self._has_ended:
            self._continue()
        self._thread.join()

    def _continue(self) -> None:
        assert not self._has_ended, "a computation that has ended cannot be resumed"
        self._is_running = True
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._wait()

    def _wait(self) -> None:
        self._back.acquire()
        self._is_running = False

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._note_time()
            self._has_ended = True
            self._back.release()

    def _note_time(self) -> None:
        # Autograd runs the backward pass of a device in other threads. Their time counts as time of the device.
        if threading.current_thread() is self._thread:
            self.processor_s = time.thread_time()
