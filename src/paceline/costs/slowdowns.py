"""Times in which a simulated rank computes more slowly, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paceline.costs.prices import Pass, Price, Work


class Slowdowns:
    """Intervals of one rank with a slowdown factor. The factor of a pause is infinite."""

    __slots__ = ("_intervals",)

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float, float]] = []

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def add(self, start_s: float, seconds: float, factor: float = math.inf) -> None:
        self._intervals.append((start_s, start_s + seconds, factor))

    def resumes_s(self, now_s: float) -> float:
        """Return the end of the pause at this time. `now_s` if the rank is not paused."""
        while ends := [end for start, end, f in self._intervals if f == math.inf and start <= now_s < end]:
            now_s = max(ends)
        return now_s

    def elapsed_s(self, start_s: float, work_s: float) -> float:
        """Return how long a computation of `work_s` takes if it begins at `start_s`. The largest factor counts."""
        now_s, left_s = start_s, work_s
        for until_s in sorted({edge for start, end, _ in self._intervals for edge in (start, end)}):
            if until_s <= now_s or left_s <= 0:
                continue
            factor = self._factor(now_s)
            if now_s + left_s * factor <= until_s:
                break
            left_s -= (until_s - now_s) / factor
            now_s = until_s
        return now_s + left_s * self._factor(now_s) - start_s if left_s > 0 else now_s - start_s

    def _factor(self, now_s: float) -> float:
        return max((f for start, end, f in self._intervals if start <= now_s < end), default=1.0)


class SlowedPrice:
    """A price of a rank with slowdowns."""

    __slots__ = ("_now", "_price", "_slowdowns")

    fixed = None

    def __init__(self, price: Price, slowdowns: Slowdowns, now: Callable[[], float]) -> None:
        self._price = price
        self._slowdowns = slowdowns
        self._now = now

    @property
    def charges_updates(self) -> bool:
        return self._price.charges_updates

    def seconds(self, kind: Work, segment: int, size: int) -> float:
        return self._slowdowns.elapsed_s(self._now(), self._price.seconds(kind, segment, size))

    def pass_seconds(self, one: Pass) -> float:
        return self._slowdowns.elapsed_s(self._now(), self._price.pass_seconds(one))

    def unused(self) -> list[float]:
        return self._price.unused()

    def put_back(self, draws: Sequence[float]) -> None:
        self._price.put_back(draws)
