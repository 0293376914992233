"""An operation in a real process: it is polled until it is done, and awaiting it never suspends the program.

The exception is a program that `start` runs in the background. There an await yields, and the waiting foreground
program polls it. These few lines are the only code of a real world that suspends.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from enum import IntEnum
from typing import ClassVar, Generic, Protocol, TypeVar

from paceline.errors import Cancelled

T = TypeVar("T")


class Activity(IntEnum):
    """The current activity of a rank: one number, which the rank writes to the status board."""

    working = 0
    send = 1
    receive = 2
    barrier = 3
    compute = 4
    sleep = 5
    several = 6


class Waiter(Protocol):
    """The rank's context, which waits for operations."""

    in_background: bool

    def wait(self, operation: Operation[T]) -> None:
        """Wait until the operation is done. Raise an error if it cannot be done."""
        ...

    def start(self, work: Operation[T]) -> object:
        """Poll the operation whenever this rank waits."""
        ...

    def is_lost(self, rank: int) -> bool:
        """Return whether a rank is known to be lost."""
        ...


class Operation(Generic[T]):
    """An operation that takes time. It is its own handle."""

    __slots__ = ("done", "error", "result", "waiter")

    doing: ClassVar[Activity] = Activity.several
    result: T

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.done = False
        self.error: BaseException | None = None

    def poll(self) -> bool:
        """Make as much progress as possible without waiting. Return whether the operation is done."""
        raise NotImplementedError

    def cancel(self) -> None:
        if not self.done:
            self.error = Cancelled()
            self.done = True

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that this operation waits for."""
        return ()

    def takes_own(self) -> bool:
        """Return whether it also waits for messages from another program of this rank."""
        return False

    def progress(self) -> int:
        """Return 0 before the message has begun to arrive, then a number that grows with the data received."""
        return 0

    def due_s(self) -> float:
        """Return the time at which to poll again even if no bell rings, on the run's clock."""
        return math.inf

    def __str__(self) -> str:
        return type(self).__name__.lower()

    def take(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result

    def __await__(self) -> Generator[Operation[T], None, T]:
        waiter = self.waiter
        if waiter.in_background:
            while not self.poll():
                yield self
        elif not self.poll():
            waiter.wait(self)
        return self.take()
