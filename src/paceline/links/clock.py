"""The clock of this process's rank: the host's clock, or a clock that all ranks of a run share and that can be stopped.

If machines are emulated, an evaluation must take no time. The run's clock is therefore stopped during an evaluation,
for all ranks: ranks that sleep until the end of a gradient sleep longer, and messages on emulated links arrive later.
Deadlines use the host's clock, so no wait is unlimited if the rank that has stopped the shared clock dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable

now: Callable[[], float] = time.monotonic
"""Return the time in seconds. Call it as `clock.now()`, because `use` replaces it."""

_stoppable: StoppableClock | None = None


class StoppableClock:
    """The host's monotonic clock minus the time for which this clock was stopped.

    The state is one word, so that every change is atomic. While the clock runs, the word is the total time that the
    clock was stopped, in nanoseconds. While the clock is stopped, the word is its negated time. Only one rank may
    stop the clock. Other ranks may detect the stop late. Their clock then stops at the last time that they have read.
    """

    def __init__(self, words: memoryview, place: int) -> None:
        self._words = words
        self._place = place
        self._seen_ns = 0

    def now(self) -> float:
        while True:
            word = self._words[self._place]
            host_ns = time.monotonic_ns()
            if self._words[self._place] == word:  # otherwise the clock was stopped or started during the read
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
    """Set the clock of the process. None for the host's clock."""
    global now, _stoppable
    now = time.monotonic if clock is None else clock.now
    _stoppable = clock


def stands() -> bool:
    """Return whether the clock is stopped."""
    return _stoppable is not None and _stoppable.stands
