"""Operations of a local rank besides messages and computations: sleeping, background programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.links import clock
from paceline.links.operation import Activity, Operation
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

T = TypeVar("T")


class Background(Operation[T]):
    """A coroutine that advances whenever its rank polls."""

    __slots__ = ("_coroutine", "_current", "heard")

    def __init__(self, waiter: ProcessContext, coroutine: Coroutine[Any, None, T]) -> None:
        super().__init__(waiter)
        self.heard = False  # whether the coroutine is awaited, so that its error is raised there
        self._coroutine = coroutine
        self._current: Operation[Any] | None = None

    def __await__(self) -> Generator[Operation[T], None, T]:
        self.heard = True
        return (yield from super().__await__())

    def poll(self) -> bool:
        return self.done or self._resume(self._coroutine.send, None)

    def throw(self, error: BaseException) -> None:
        """Raise an error at the coroutine's current wait."""
        if self._current is not None:
            self._current.cancel()
        self._resume(self._coroutine.throw, error)

    def _resume(self, how: Callable[[Any], Operation[Any]], what: Any) -> bool:
        outer, self.waiter.in_background = self.waiter.in_background, True
        try:
            self._current = how(what)
        except StopIteration as stop:
            self.result = stop.value
            self.done = True
        except BaseException as error:
            self.error = error
            self.done = True
        finally:
            self.waiter.in_background = outer
        return self.done

    def cancel(self) -> None:
        if not self.done:
            if self._current is not None:
                self._current.cancel()
            self._coroutine.close()
            super().cancel()

    def close(self) -> None:
        """End the coroutine at its current wait, without cancelling what it waits for."""
        self._coroutine.close()
        super().cancel()

    def awaited(self) -> tuple[int, ...]:
        return self._current.awaited() if self._current is not None else ()

    def takes_own(self) -> bool:
        return self._current is not None and self._current.takes_own()

    def progress(self) -> int:
        return self._current.progress() if self._current is not None else 0

    def due_s(self) -> float:
        return self._current.due_s() if self._current is not None else math.inf

    def __str__(self) -> str:
        return str(self._current) if self._current is not None else "a background program"


class FirstOperation(Operation[Operation[Any]]):
    """Done when one of several operations is done."""

    __slots__ = ("_handles",)

    def __init__(self, waiter: ProcessContext, handles: Sequence[Operation[Any]]) -> None:
        super().__init__(waiter)
        self._handles = handles

    def poll(self) -> bool:
        for handle in self._handles:
            if handle.poll():
                self.result = handle
                self.done = True
                return True
        return False

    def awaited(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(rank for handle in self._handles for rank in handle.awaited()))

    def takes_own(self) -> bool:
        return any(handle.takes_own() for handle in self._handles)

    def progress(self) -> int:
        return sum(handle.progress() for handle in self._handles)

    def due_s(self) -> float:
        return min((handle.due_s() for handle in self._handles), default=math.inf)

    def __str__(self) -> str:
        return " or ".join(str(handle) for handle in self._handles)


class SleepOperation(Operation[None]):
    """Done after a number of seconds. The time starts at the first poll."""

    __slots__ = ("_began_s", "_context", "_seconds", "_until_s")

    doing = Activity.sleep

    def __init__(self, context: ProcessContext, seconds: float) -> None:
        super().__init__(context)
        self._context = context
        self._seconds = seconds
        self._began_s = 0.0
        self._until_s = math.inf
        self.result = None

    def poll(self) -> bool:
        if self._until_s == math.inf:
            self._began_s = self._context.now()
            self._until_s = clock.now() + self._seconds
        if not self.done and clock.now() >= self._until_s:
            self.done = True
            self._context.span(Kind.SLEEP, self._began_s, self._context.now())
        return self.done

    def due_s(self) -> float:
        return self._until_s
