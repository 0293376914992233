"""Who is slow, while a run goes on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["slowest"]

_SLOW = 1.25  # less may be chance


def slowest(computing_s: Sequence[float], computations: Sequence[int]) -> tuple[int | None, float]:
    """The rank that computes the slowest, and how many times as long as the others' median; (None, 1.0) if none does.

    Given the seconds that each rank has spent on computations, cancelled ones included, and how many it has ended.
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
