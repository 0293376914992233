"""Virtual time: coroutines that park on operations, and a heap of (time, sequence) that wakes them.

Nothing here reads a clock or draws a number, so that the same programs always take the same course.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from heapq import heappop, heappush, heappushpop
from typing import Any, Generic, TypeAlias, TypeVar

from paceline.errors import Cancelled, DeadlockError

__all__ = ["AnyOf", "Event", "Kernel", "Process", "Waiter"]

T = TypeVar("T")


class Event(Generic[T]):
    """Something that happens at some time. Awaiting it parks the process until then. Serves as its own handle."""

    __slots__ = ("done", "error", "result", "started", "waiter")

    result: T
    error: BaseException | None
    waiter: Waiter | list[Waiter] | None
    """Who waits for it. A list only if there are several, which is rare."""

    def __init__(self) -> None:
        self.done = self.started = False
        self.error = self.waiter = None

    def start(self) -> None:
        """Begin. Called once, by whoever awaits it or hands it to `start`."""

    def park(self, waiter: Waiter) -> None:
        if self.waiter is None:
            self.waiter = waiter
        elif isinstance(self.waiter, list):
            self.waiter.append(waiter)
        else:
            self.waiter = [self.waiter, waiter]

    def cancel(self) -> None:
        if not self.done:
            self.withdraw()
            self.error = Cancelled()
            self.done = True
            if self.waiter is not None:
                first = self.waiter[0] if isinstance(self.waiter, list) else self.waiter
                first.kernel.finish(self)

    def withdraw(self) -> None:
        """Undo what can be undone of an operation that nobody wants any more."""

    def __await__(self) -> Generator[Event[T], None, T]:
        if not self.started:
            self.started = True
            self.start()
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.result


class Process(Event[T]):
    """A coroutine in virtual time; done when it has returned."""

    __slots__ = ("_coroutine", "_go_on", "_interruption", "kernel", "name", "parent", "parked")

    def __init__(
        self,
        kernel: Kernel,
        coroutine: Coroutine[Any, None, T],
        name: str = "",
        parent: Process[Any] | None = None,
    ) -> None:
        super().__init__()
        self.started = True
        self.parent = parent
        self._interruption: BaseException | None = None
        self.kernel = kernel
        self._coroutine = coroutine
        self._go_on = coroutine.send
        self.name = name
        self.parked: Event[Any] | None = None

    def resume(self) -> None:
        """Run until the coroutine parks again or ends."""
        if self.done:
            return
        self.parked = None
        interruption = self._interruption
        try:
            event = self._go_on(None) if interruption is None else self._interrupted(interruption)
        except StopIteration as stop:
            self.result = stop.value
            self.kernel.finish(self)
        except BaseException as error:
            self.error = error
            if self.name:
                self.done = True
                raise  # it ends the simulation; a process without a name passes its error to its parent
            if self.waiter is None and self.parent is not None:
                self.parent.interrupt(error)
            self.kernel.finish(self)
        else:
            if self._interruption is not None:  # by a process that it has just started
                self.kernel.ready.append(self)
                return
            self.parked = event
            if event.waiter is None:
                event.waiter = self
            else:
                event.park(self)

    def interrupt(self, error: BaseException) -> None:
        """Raise an error where this process is parked, or would park next."""
        self._interruption = error
        self.kernel.unskippable += 1  # it must park, so that the error can be raised there
        if self.parked is not None:
            self.parked.cancel()

    def _interrupted(self, error: BaseException) -> Event[Any]:
        self._interruption = None
        event: Event[Any] = self._coroutine.throw(error)
        return event

    def withdraw(self) -> None:
        if self.parked is not None and not self.parked.done:
            self.parked.cancel()
        self._coroutine.close()

    def __str__(self) -> str:
        return str(self.parked) if self.parked is not None else "a program of its own"


class AnyOf(Event[None]):
    """Done when one of several is. The first of them finishes it; the others find it done and do nothing."""

    __slots__ = ("events", "kernel")

    name = ""

    def __init__(self, kernel: Kernel, events: Sequence[Event[Any]]) -> None:
        super().__init__()
        self.kernel = kernel
        self.events = events
        self.result = None

    def start(self) -> None:
        for event in self.events:
            event.park(self)

    def resume(self) -> None:
        if not self.done:
            self.kernel.finish(self)

    def __str__(self) -> str:
        return " or ".join(str(event) for event in self.events)


Waiter: TypeAlias = "Process[Any] | AnyOf"


_Call: TypeAlias = tuple[float, int, Callable[[Any], None], Any]
"""What will happen: at which time, its number, what to call, and with what."""


class Kernel:
    """The clock and the heap."""

    __slots__ = ("_count", "_heap", "_latest", "now", "ready", "unskippable")

    def __init__(self) -> None:
        self.now = 0.0
        self.unskippable = 0
        """Above 0, time must not be skipped: a process that starts another has to go on at this instant first, say."""
        self.ready: deque[Waiter] = deque()
        self._heap: list[_Call] = []
        self._latest: _Call | None = None
        """The call that was asked for last. It is kept out of the heap, because often it is the next to be made."""
        self._count = itertools.count().__next__
        """Gives the next number: calls of equal time are made in the order of their numbers."""

    def at(self, time_s: float, action: Callable[[Any], None], argument: Any) -> None:
        """Call `action(argument)` at a time. Calls of equal time come in the order in which they were asked for."""
        if self._latest is not None:
            heappush(self._heap, self._latest)
        self._latest = (time_s, self._count(), action, argument)

    def skip_to(self, time_s: float) -> bool:
        """Move the clock on at once if nothing else happens until then: the process that waits need not park."""
        if self.ready or self.unskippable:
            return False
        heap, latest = self._heap, self._latest
        if (heap and heap[0][0] <= time_s) or (latest is not None and latest[0] <= time_s):
            return False
        self.now = time_s
        return True

    def finish(self, event: Event[Any]) -> None:
        """The event has happened: its waiters go on, in the order in which they came."""
        event.done = True
        waiter = event.waiter
        if waiter is not None:
            event.waiter = None
            if isinstance(waiter, list):
                self.ready.extend(waiter)
            else:
                self.ready.append(waiter)

    def run(self, processes: list[Process[Any]]) -> None:
        """Until all have ended. The first error ends it."""
        self.ready.extend(processes)
        heap, ready = self._heap, self.ready
        while True:
            while ready:
                ready.popleft().resume()
            latest = self._latest
            if latest is not None:
                self._latest = None
                self.now, _, action, argument = heappushpop(heap, latest)
            elif heap:
                self.now, _, action, argument = heappop(heap)
            else:
                break
            action(argument)
        stuck = [f"{process.name} waits in {process.parked}" for process in processes if not process.done]
        if stuck:
            raise DeadlockError(stuck)
