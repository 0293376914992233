"""Events in virtual time, and the coroutines that park on them."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from paceline.errors import Cancelled

if TYPE_CHECKING:
    from paceline.clusters.simulated.kernel import Kernel

T = TypeVar("T")


class Event(Generic[T]):
    """An event in virtual time. Awaiting it parks the process until then. It is also its own handle."""

    __slots__ = ("done", "error", "result", "started", "waiter")

    result: T
    error: BaseException | None
    waiter: Waiter | list[Waiter] | None
    """Waiter of the event. A list only if there are several, which is rare."""

    def __init__(self) -> None:
        self.done = self.started = False
        self.error = self.waiter = None

    def start(self) -> None:
        """Start the event. Called once, when it is awaited or passed to `start`."""

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
        """Undo an operation that has been cancelled, as far as possible."""

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
    """A coroutine in virtual time. Done when it has returned."""

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
                raise  # the error ends the simulation; a process without a name passes it to the parent
            if self.waiter is None and self.parent is not None:
                self.parent.interrupt(error)
            self.kernel.finish(self)
        else:
            if self._interruption is not None:  # cancelled by a process that it has just started
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
        return str(self.parked) if self.parked is not None else "a separate program"


class AnyOf(Event[None]):
    """Done when one of several events is. The first finished event completes it. The others have no effect."""

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
