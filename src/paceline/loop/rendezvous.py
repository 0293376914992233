"""Control passes between the user's thread and the program's thread: one of them runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.loop.facts import StepFacts

if TYPE_CHECKING:
    from paceline.loop.context import LoopContext

Errand: TypeAlias = "Callable[[LoopContext], Coroutine[Any, Any, Any]]"
"""Work that the program's thread does for the user's thread between two steps, such as a gather operation."""


class LoopEnded(BaseException):
    """Ends the program of a worker after the end of the user's loop.

    It is a BaseException, so that no strategy catches it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A gradient that the user's loop has computed."""

    facts: StepFacts
    start_s: float
    """Start of its computation, on the run's clock."""
    logged: dict[str, float]
    """Values for the run's history, besides the loss."""


@dataclass(frozen=True, slots=True)
class StartedErrand:
    """An errand, and the future that gets its result."""

    errand: Errand
    future: Future[Any]

    async def run(self, context: LoopContext) -> None:
        try:
            self.future.set_result(await self.errand(context))
        except Exception as error:
            self.future.set_exception(error)
            raise


Item: TypeAlias = "Delivery | StartedErrand"


class Rendezvous:
    """The meeting point of both threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._item: Item | None = None
        self._is_parked = False
        self._has_ended = False
        self._failure: BaseException | None = None
        self._is_over = False
        self._error: BaseException | None = None
        self.ring: Callable[[], None] = lambda: None
        """Wakes the rank, if it sleeps in a wait."""

    # Called by the user's thread

    @property
    def is_over(self) -> bool:
        """Whether the program has ended."""
        return self._is_over

    def deliver(self, delivery: Delivery) -> None:
        """Pass a gradient to the program. Return when the program waits for the next one, or has ended."""
        self._put(delivery)
        self.wait_until_parked()

    def run(self, errand: Errand) -> Any:
        """Run an errand in the program's thread, between two steps. Return its result."""
        started = StartedErrand(errand, Future())
        self._put(started)
        self.wait_until_parked()
        if self._is_over and not started.future.done():
            return None
        return started.future.result()

    def end(self, failure: BaseException | None = None) -> None:
        """Notify the program that no gradient follows, or that the user's code has failed."""
        with self._changed:
            self._has_ended, self._failure = True, failure
            self._changed.notify_all()
        self.ring()

    def wait_until_parked(self) -> None:
        """Wait until the program needs the next gradient. Raise the error that ended it, if it has failed."""
        with self._changed:
            while not self._is_over and not (self._is_parked and self._item is None):
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def _put(self, item: Item) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            self._item, self._is_parked = item, False
            self._changed.notify_all()
        self.ring()

    # Called by the program's thread

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def take(self) -> Item | None:
        """Return the next item. None if there is none yet. Raise LoopEnded at the end of the user's loop."""
        with self._changed:
            item, self._item = self._item, None
            if item is not None:
                return item
            if self._failure is not None:
                raise self._failure
            if self._has_ended:
                raise LoopEnded
            if not self._is_parked:
                self._is_parked = True
                self._changed.notify_all()
            return None

    def wait(self) -> Item:
        """Wait for the next item. Raise LoopEnded at the end of the user's loop."""
        while True:
            item = self.take()
            if item is not None:
                return item
            with self._changed:
                self._changed.wait_for(lambda: self._item is not None or self._has_ended)

    def close(self, error: BaseException | None = None) -> None:
        """The program has ended: with an error, or normally."""
        with self._changed:
            self._is_over, self._error = True, error
            self._changed.notify_all()
