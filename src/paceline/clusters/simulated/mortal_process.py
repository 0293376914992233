"""Programs of simulated ranks that may die, pause or be interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.clusters.simulated.process import Process

if TYPE_CHECKING:
    from paceline.clusters.simulated.faulty_context import FaultyContext

T = TypeVar("T")


class MortalProcess(Process[T]):
    """A program of a rank that may die."""

    __slots__ = ("_context", "ended_s")

    def __init__(self, context: FaultyContext, coroutine: Coroutine[Any, None, T], name: str) -> None:
        super().__init__(context.kernel, coroutine, name, context.program)
        self._context = context
        self.ended_s = 0.0

    def resume(self) -> None:
        if self.done:
            return
        resumes_s = self._context.slowdowns.resumes_s(self.kernel.now)
        if resumes_s > self.kernel.now:  # paused
            self.kernel.at(resumes_s, MortalProcess._resume_later, self)
        else:
            super().resume()
            self.ended_s = self.kernel.now
            self._context.check_all()

    def _resume_later(self) -> None:
        if not self.done:
            self.kernel.ready.append(self)

    def stop(self) -> None:
        """Stop the program for good, without notifying its waiters."""
        if not self.done:
            self.result = None  # type: ignore[assignment]
            self.done = True

    def throw(self, error: BaseException) -> None:
        """Raise an error where this program is parked."""
        assert self.parked is not None
        self._interruption = error
        self.parked.cancel()

    def close(self) -> None:
        """Close the program at the end of the run. Errors of a dead program are ignored."""
        with contextlib.suppress(Exception):
            self._coroutine.close()
        del self._context
