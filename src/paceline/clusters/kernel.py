"""Virtual time: coroutines that park on operations, and a heap of (time, sequence) that wakes them.

Nothing here reads a clock or draws a number, so that the same programs always take the same course.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from paceline.errors import Cancelled, DeadlockError

__all__ = ["Event", "Kernel", "Process"]

T = TypeVar("T")


class Event(Generic[T]):
    """Something that will have happened. Awaiting it parks the process until then. Serves as its own handle."""

    __slots__ = ("done", "error", "result", "started", "waiters")

    result: T
    error: BaseException | None
    waiters: list[Process[Any]] | None

    def __init__(self) -> None:
        self.done = self.started = False
        self.error = self.waiters = None

    def start(self) -> None:
        """Begin. Called once, by whoever awaits it or hands it to `start`."""

    def park(self, process: Process[Any]) -> None:
        if self.waiters is None:
            self.waiters = [process]
        else:
            self.waiters.append(process)

    def cancel(self) -> None:
        if not self.done:
            self.withdraw()
            self.error = Cancelled()
            self.done = True

    def withdraw(self) -> None:
        """Undo what can be undone of an operation that nobody wants any more."""

    def look(self) -> bool:
        """Whether it has happened by now."""
        return self.done

    def __await__(self) -> Generator[Event[T], None, T]:
        if not self.started:
            self.started = True
            self.start()
        if not (self.done or self.look()):
            yield self
        if self.error is not None:
            raise self.error
        return self.result


class Process(Event[T]):
    """A coroutine in virtual time; done when it has returned."""

    __slots__ = ("_coroutine", "_kernel", "name", "parked")

    def __init__(self, kernel: Kernel, coroutine: Coroutine[Any, None, T], name: str = "") -> None:
        super().__init__()
        self.started = True
        self._kernel = kernel
        self._coroutine = coroutine
        self.name = name
        self.parked: Event[Any] | None = None

    def resume(self) -> None:
        """Run until the coroutine parks again or ends."""
        if self.done:
            return
        self.parked = None
        try:
            event = self._coroutine.send(None)
        except StopIteration as stop:
            self.result = stop.value
            self._kernel.finish(self)
        except BaseException as error:
            self.error = error
            self._kernel.finish(self)
        else:
            self.parked = event
            event.park(self)

    def withdraw(self) -> None:
        if self.parked is not None and not self.parked.done:
            self.parked.cancel()
        self._coroutine.close()


class Kernel:
    """The clock and the heap."""

    __slots__ = ("_heap", "_sequence", "now", "ready")

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[Process[Any]] = deque()
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0

    def at(self, time_s: float, action: Callable[[Any], None], argument: Any) -> None:
        """Call `action(argument)` at a time. Calls of equal time come in the order in which they were asked for."""
        self._sequence += 1
        heapq.heappush(self._heap, (time_s, self._sequence, action, argument))

    def finish(self, event: Event[Any]) -> None:
        """The event has happened: its waiters go on, in the order in which they came."""
        event.done = True
        if event.waiters is not None:
            self.ready.extend(event.waiters)
            event.waiters = None

    def run(self, processes: list[Process[Any]]) -> None:
        """Until all have ended. The first error ends it."""
        self.ready.extend(processes)
        heap, ready, pop = self._heap, self.ready, heapq.heappop
        while True:
            while ready:
                process = ready.popleft()
                process.resume()
                if (
                    process.error is not None and process.name
                ):  # an error of a nameless one is for who awaits it
                    raise process.error
            if not heap:
                break
            self.now, _, action, argument = pop(heap)
            action(argument)
        stuck = [f"{process.name} waits in {process.parked}" for process in processes if not process.done]
        if stuck:
            raise DeadlockError(stuck)
