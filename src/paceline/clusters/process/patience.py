"""How long a rank waits for an operation: until one deadline without progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paceline.clusters.process.awaited_work import LIMIT
from paceline.links.operation import Operation

_CHECK_S = 0.5  # a sleeping rank checks the others at this interval


class Patience:
    """Remaining time of a wait. Data that arrives restarts it. Work of an awaited rank extends it, up to a limit."""

    __slots__ = ("_deadline_s", "_is_renewed", "_most_s", "_progress", "_until_s", "_work", "_worked")
    _most_s: float
    _until_s: float

    def __init__(self, deadline_s: float, work: Callable[[], int]) -> None:
        """`work` counts the intervals in which an awaited rank has computed."""
        self._deadline_s = deadline_s
        self._work = work
        self._worked = work()
        self._progress = 0
        self._is_renewed = False
        self._restart()

    @property
    def limit_s(self) -> float:
        """The limit that has ended the wait: one deadline without work, or the longest time with work."""
        return LIMIT * self._deadline_s if time.monotonic() >= self._most_s else self._deadline_s

    def renew(self) -> bool:
        """Restart the deadline. This works once. Return whether it was restarted."""
        if self._is_renewed:
            return False
        self._is_renewed = True
        self._restart()
        return True

    def is_over(self, operation: Operation[Any]) -> bool:
        progress = operation.progress()
        if progress != self._progress:
            self._progress = progress
            self._restart()
        elif (worked := self._work()) != self._worked:
            self._worked = worked
            self._until_s = min(time.monotonic() + self._deadline_s, self._most_s)
        return time.monotonic() >= self._until_s

    def left_s(self) -> float:
        """Return the seconds until the next check."""
        left_s = self._until_s - time.monotonic()
        return min(left_s, _CHECK_S) if left_s > 0 else _CHECK_S

    def _restart(self) -> None:
        now_s = time.monotonic()
        self._until_s, self._most_s = now_s + self._deadline_s, now_s + LIMIT * self._deadline_s
