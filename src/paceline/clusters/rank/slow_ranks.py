"""Detection of slow ranks during a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_SLOW = 1.25  # smaller factors may be random


def slowest(computing_s: Sequence[float], computations: Sequence[int]) -> tuple[int | None, float]:
    """Return the slowest rank, and its mean time divided by the median of the others. (None, 1.0) if none is slow.

    `computing_s` is the time that each rank has spent on computations, including cancelled ones. `computations` is the
    number that each rank has completed.
    """
    means = {
        rank: seconds / ended if ended else math.inf
        for rank, (seconds, ended) in enumerate(zip(computing_s, computations, strict=True))
        if seconds > 0
    }
    if len(means) < 2:
        return None, 1.0
    worst = max(means, key=lambda rank: means[rank])
    others_s = statistics.median(mean for rank, mean in means.items() if rank != worst)
    factor = means[worst] / others_s if 0 < others_s < math.inf else 1.0
    return (worst, factor) if factor >= _SLOW else (None, 1.0)
