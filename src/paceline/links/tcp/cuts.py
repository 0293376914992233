"""Times in which the connections of a rank hold messages back, to test a network that fails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from paceline.links import clock


class LinkCut(NamedTuple):
    """A time of the run in which no message is sent to some ranks."""

    start_s: float
    end_s: float
    ranks: Collection[int]


class LinkCuts:
    """The cuts of one rank."""

    def __init__(self, cuts: Collection[LinkCut] = (), now: Callable[[], float] = time.monotonic) -> None:
        """`now` returns the time of the run."""
        self._cuts = cuts
        self._now = now

    def __bool__(self) -> bool:
        return bool(self._cuts)

    def holds(self, rank: int) -> bool:
        """Return whether messages to a rank are held back now."""
        return self._left_s(rank) > 0

    def resumes_s(self, rank: int) -> float:
        """Return when messages to a rank are sent again, on the clock of the links. Infinite if they are sent now."""
        left_s = self._left_s(rank)
        return clock.now() + left_s if left_s > 0 else math.inf

    def forget_begun(self) -> None:
        """Drop the cuts that have begun: they were cuts of an earlier process of this rank."""
        now_s = self._now()
        self._cuts = [cut for cut in self._cuts if cut.start_s > now_s]

    def _left_s(self, rank: int) -> float:
        now_s = self._now()
        ends_s = [cut.end_s for cut in self._cuts if cut.start_s <= now_s and rank in cut.ranks]
        return max(ends_s, default=-math.inf) - now_s
