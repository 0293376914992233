"""The time of a step in the steady state, from the times at which updates end.

The first updates of a run differ from the others: queues are empty, and all workers start together. The last one
differs too, because workers end. So a short simulation is cut into cycles, in which every worker gives one gradient on
average, and later cycles count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-3
"""Largest relative difference of cycles that are equal."""
_EQUAL = 3
"""Number of equal cycles in succession that show the steady state."""


def steady_step_s(
    simulate: Callable[[int], Sequence[float]], cycle: int, *, cycles: Sequence[int], varies: bool
) -> float:
    """Return the seconds of an update in the steady state.

    `simulate(updates)` returns when each update ended. `cycle` is the number of updates of a cycle. The simulation has
    the first number of `cycles`, then the next one, until the last cycles are equal. If none are, or if cycles vary,
    the mean of the later cycles counts.
    """
    lengths_s = np.zeros(0)
    for count in cycles:
        ends_s = np.asarray(simulate(count * cycle + 2))
        lengths_s = np.diff(ends_s[: count * cycle + 1 : cycle])
        if not varies and _are_equal(lengths_s[-_EQUAL:]):
            return float(lengths_s[-1]) / cycle
    return float(lengths_s[len(lengths_s) // 8 :].mean()) / cycle


def _are_equal(lengths_s: NDArray[np.float64]) -> bool:
    return len(lengths_s) == _EQUAL and float(np.ptp(lengths_s)) <= _TOLERANCE * float(lengths_s.max())
