"""An operation of a world of real processes: it is polled until it is done, and awaiting it never suspends the program.

The exception is a program that `start` has put into the background: there an await yields, and whoever waits in the
foreground polls it meanwhile. These few lines are the only place of such a world that suspends.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from enum import IntEnum
from typing import ClassVar, Generic, Protocol, TypeVar

from paceline.errors import Cancelled

__all__ = ["Doing", "Operation", "Waiter"]

T = TypeVar("T")


class Doing(IntEnum):
    """What a rank is doing: one number, which it writes on the status board."""

    working = 0
    send = 1
    receive = 2
    barrier = 3
    compute = 4
    sleep = 5
    several = 6


class Waiter(Protocol):
    """Who waits: the rank's context."""

    in_background: bool

    def wait(self, operation: Operation[T]) -> None:
        """Return when the operation is done; raise if it cannot be."""
        ...

    def start(self, work: Operation[T]) -> object:
        """Poll the operation whenever this rank waits."""
        ...

    def is_lost(self, rank: int) -> bool:
        """Whether a rank is known to be gone."""
        ...


class Operation(Generic[T]):
    """Something that takes time. Serves as its own handle."""

    __slots__ = ("done", "error", "result", "waiter")

    doing: ClassVar[Doing] = Doing.several
    result: T

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.done = False
        self.error: BaseException | None = None

    def poll(self) -> bool:
        """Go on as far as possible without waiting; tell whether it is done."""
        raise NotImplementedError

    def cancel(self) -> None:
        if not self.done:
            self.error = Cancelled()
            self.done = True

    def awaited(self) -> tuple[int, ...]:
        """The ranks without which it cannot end."""
        return ()

    def takes_own(self) -> bool:
        """Whether it also waits for what this rank may send to itself, by another program."""
        return False

    def progress(self) -> int:
        """0 before its message has begun to come; then a number that grows with what has come."""
        return 0

    def due_s(self) -> float:
        """When it wants to be polled even if no bell rings, on the run's clock."""
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
