"""Cores that ranks share: a computation takes longer while other ranks compute.

All computations that are under way progress at the same speed, 1 / slowdown(n) if there are n of them. When one begins
or ends, the speed of the others changes, and the next end is scheduled anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from paceline.clusters.simulated.kernel import Kernel

Action = Callable[[Any], None]


class _Work:
    """A computation under way."""

    __slots__ = ("done_s", "marks", "owner")

    def __init__(self, owner: object, seconds: float, action: Action) -> None:
        self.owner = owner
        self.done_s = 0.0
        """Seconds of its work that are done."""
        self.marks: list[tuple[float, Action, object]] = [(seconds, action, owner)]
        """Seconds of work after which a function is called, in order. The last one is the end."""


class Cores:
    """The cores of one machine."""

    def __init__(self, kernel: Kernel, slowdown: Callable[[int], float]) -> None:
        """`slowdown` returns the factor on the seconds of a computation, given the number of computations."""
        self._kernel = kernel
        self.slowdown = slowdown
        self._works: dict[int, _Work] = {}
        self._now_s = 0.0
        """Time at which `done_s` of all works was computed."""
        self._plan = 0
        """Number of the current plan. A scheduled call of an older one is ignored."""

    def begin(self, owner: object, seconds: float, action: Action) -> None:
        """Begin a computation of `seconds` seconds, if it were alone. Then call `action(owner)`."""
        self._advance()
        self._works[id(owner)] = _Work(owner, seconds, action)
        self._schedule()

    def mark(self, owner: object, seconds: float, action: Action) -> None:
        """Call `action(owner)` when `seconds` seconds of a computation's work are done, or it has ended."""
        self._advance()
        work = self._works.get(id(owner))
        if work is None or work.done_s >= seconds:
            action(owner)
            return
        work.marks.append((min(seconds, work.marks[-1][0]), action, owner))
        work.marks.sort(key=lambda mark: mark[0])
        self._schedule()

    def drop(self, owner: object) -> None:
        """End a computation early. Nothing is called."""
        self._advance()
        if self._works.pop(id(owner), None) is not None:
            self._schedule()

    def _advance(self) -> None:
        now_s = self._kernel.now
        if self._works and now_s > self._now_s:
            progress_s = (now_s - self._now_s) / self.slowdown(len(self._works))
            for work in self._works.values():
                work.done_s += progress_s
        self._now_s = now_s

    def _schedule(self) -> None:
        self._plan += 1
        if self._works:
            left_s = min(work.marks[0][0] - work.done_s for work in self._works.values())
            due_s = self._kernel.now + max(0.0, left_s) * self.slowdown(len(self._works))
            self._kernel.at(due_s, self._come, self._plan)

    def _come(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        due: list[tuple[float, Action, object]] = []
        left_s = min(work.marks[0][0] - work.done_s for work in self._works.values())
        for key, work in tuple(self._works.items()):
            # The first one is due by definition. Rounding must not leave it a rest that takes no time.
            while work.marks and work.marks[0][0] - work.done_s <= left_s + 1e-12 * math.fabs(work.done_s):
                due.append(work.marks.pop(0))
            if not work.marks:
                del self._works[key]
        self._schedule()
        for _, action, owner in due:
            action(owner)
