"""The clock of this process's rank: its host's, or one that all ranks of a run share and that can be stopped.

Where machines are emulated, time is what they would take. Looking at the model takes them none, so the run's clock
stands still meanwhile, for all ranks: for gradients that are being slept out and for messages on emulated links.
Deadlines go by the host's clock: nothing waits for ever, whatever happens to who has stopped this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["StoppableClock", "now", "stands", "use"]

now: Callable[[], float] = time.monotonic
"""Seconds. Call it as `clock.now()`: `use` replaces it."""

_stoppable: StoppableClock | None = None


class StoppableClock:
    """The host's monotonic clock, less the time for which it was stopped.

    It is one word, so that nobody sees half of a change: how many nanoseconds it has stood still so far; or, while it
    stands, minus what it shows. One rank alone may stop it. The others may hear of that a moment late, and then see it
    stand at a moment that is past for them: they see it stand where they last saw it.
    """

    def __init__(self, words: memoryview, place: int) -> None:
        self._words = words
        self._place = place
        self._seen_ns = 0

    def now(self) -> float:
        while True:
            word = self._words[self._place]
            host_ns = time.monotonic_ns()
            if self._words[self._place] == word:  # else it was stopped in between, or goes on
                self._seen_ns = now_ns = max(self._seen_ns, host_ns - word if word >= 0 else -word)
                return now_ns * 1e-9

    @property
    def stands(self) -> bool:
        return self._words[self._place] < 0

    def stop(self) -> None:
        self._words[self._place] -= time.monotonic_ns()

    def go_on(self) -> None:
        self._words[self._place] += time.monotonic_ns()


def use(clock: StoppableClock | None) -> None:
    """Let this be the clock of the process. None: the host's."""
    global now, _stoppable
    now = time.monotonic if clock is None else clock.now
    _stoppable = clock


def stands() -> bool:
    """Whether the clock has been stopped."""
    return _stoppable is not None and _stoppable.stands
