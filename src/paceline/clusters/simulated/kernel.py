"""Virtual time: coroutines that park on events, and a heap of (time, sequence) that wakes them.

Nothing here reads a clock or draws a random number. So the same programs always run in the same order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush, heappushpop
from typing import Any, TypeAlias

from paceline.clusters.simulated.process import Event, Process, Waiter
from paceline.errors import DeadlockError
from paceline.system import interrupts

_FRACTION = 2.0**-22
"""Difference of sequence numbers in a replay. These are between whole numbers: see `Kernel.replay`."""

_Call: TypeAlias = tuple[float, float, Callable[[Any], None], Any]
"""A scheduled call: time, sequence number, function and argument."""


class Kernel:
    """Clock and event heap."""

    __slots__ = ("_after_replay", "_heap", "_latest", "next_number", "now", "ready", "unskippable")

    def __init__(self) -> None:
        self.now = 0.0
        self.unskippable = 0
        """If above 0, time must not be skipped: for example, a process is starting another one at this time."""
        self.ready: deque[Waiter] = deque()
        self._heap: list[_Call] = []
        self._latest: _Call | None = None
        """The call scheduled last. It is stored outside of the heap, because it is often the next call."""
        self.next_number: Callable[[], float] = itertools.count().__next__
        """Returns the next sequence number. Calls at equal times are made in this order."""
        self._after_replay: list[Callable[[], None]] | None = None
        """Calls to make at the end of a replay. None if there is no replay."""

    def at(self, time_s: float, action: Callable[[Any], None], argument: Any) -> None:
        """Call `action(argument)` at a time. Calls at equal times are made in the order of scheduling."""
        if self._latest is not None:
            heappush(self._heap, self._latest)
        self._latest = (time_s, self.next_number(), action, argument)

    def skip_to(self, time_s: float) -> bool:
        """Advance the clock to a time if no call is scheduled before it.

        The waiting process then does not have to park.
        """
        if self.ready or self.unskippable or interrupts.state.pending:
            return False
        heap, latest = self._heap, self._latest
        if (heap and heap[0][0] <= time_s) or (latest is not None and latest[0] <= time_s):
            return False
        self.now = time_s
        return True

    def finish(self, event: Event[Any]) -> None:
        """Mark an event as done. Its waiters resume in the order in which they parked."""
        event.done = True
        waiter = event.waiter
        if waiter is not None:
            event.waiter = None
            if isinstance(waiter, list):
                self.ready.extend(waiter)
            else:
                self.ready.append(waiter)

    def replay(
        self,
        calls: Sequence[tuple[float, Callable[[Any], None], Any]],
        number: float,
        has_ended: Callable[[], bool],
    ) -> None:
        """Make calls at past times, and everything that follows from them before now. The rest is scheduled.

        Calls at the current time are made only as long as `has_ended` returns False. `number` is the sequence
        number of the first call at its time: calls at equal times are made as if scheduled then.

        The calls must not depend on what else has happened since. Programs do not run: see `after_replay`.
        """
        assert self._after_replay is None
        now_s, scheduled, ready = self.now, self._take_scheduled(), list(self.ready)
        self.ready.clear()
        self.unskippable += 1
        next_number = self.next_number
        self.next_number = itertools.count(number + _FRACTION / 2, _FRACTION).__next__
        after: list[Callable[[], None]] = []
        self._after_replay = after
        for call in calls:
            self.at(*call)
        while self._run_next(now_s, is_strict=has_ended()):
            pass
        self._after_replay, self.next_number = None, next_number
        self.unskippable -= 1
        self.now = now_s
        self._heap += scheduled + self._take_scheduled()
        heapify(self._heap)
        self.ready.extend(ready)
        for action in after:
            action()

    def after_replay(self, action: Callable[[], None]) -> None:
        """Call a function that lets programs continue: now, or at the end of a replay."""
        if self._after_replay is None:
            action()
        else:
            self._after_replay.append(action)

    def _run_next(self, time_s: float, *, is_strict: bool) -> bool:
        """Make the next call, if it is before `time_s`, or at that time if not `is_strict`.

        Return whether a call was made.
        """
        while self.ready:
            self.ready.popleft().resume()
        if self._latest is not None:
            heappush(self._heap, self._latest)
            self._latest = None
        if not self._heap or (self._heap[0][0] >= time_s if is_strict else self._heap[0][0] > time_s):
            return False
        self.now, _, action, argument = heappop(self._heap)
        action(argument)
        return True

    def withdraw(self, arguments: Collection[object]) -> list[Any]:
        """Remove the scheduled calls with these arguments. Return the arguments that were found."""
        wanted = {id(argument) for argument in arguments}
        return [call[3] for call in self._remove(lambda call: id(call[3]) in wanted)]

    def withdraw_methods(self, owner: object) -> None:
        """Remove the scheduled calls of an object's methods."""
        self._remove(lambda call: getattr(call[2], "__self__", None) is owner)

    def _remove(self, is_unwanted: Callable[[_Call], bool]) -> list[_Call]:
        calls = self._take_scheduled()
        self._heap += [call for call in calls if not is_unwanted(call)]
        heapify(self._heap)
        return [call for call in calls if is_unwanted(call)]

    def _take_scheduled(self) -> list[_Call]:
        calls = [*self._heap] if self._latest is None else [*self._heap, self._latest]
        self._heap.clear()  # in place: `run` refers to it
        self._latest = None
        return calls

    def run(self, processes: list[Process[Any]]) -> None:
        """Run until all processes have ended. The first error ends the run."""
        self.ready.extend(processes)
        heap, ready, signals = self._heap, self.ready, interrupts.state
        while True:
            if signals.pending:
                interrupts.safe_point()
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
