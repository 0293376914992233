"""Bubbles: the share of their time in which the ranks of a pipeline do not compute.

Of each step, cost is the longest time that a rank is at it, from the start of its first pass to the end of its last.
The bubble is what is left of the cost when the mean rank's computing is taken off; of several steps, all together.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2024, whose rates are those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.trace.spans import COMPUTING, Spans

__all__ = ["bubble"]


def bubble(spans: Sequence[Spans]) -> float:
    """The share. 0 where nobody computes."""
    ranks = [each.of(*COMPUTING) for each in spans]
    ranks = [array for array in ranks if len(array)]
    if not ranks:
        return 0.0
    steps = 1 + max(int(array["step"].max()) for array in ranks)
    cost_s, busy_s = np.zeros(steps), 0.0
    for array in ranks:
        first_s, last_s = np.full(steps, np.inf), np.full(steps, -np.inf)
        np.minimum.at(first_s, array["step"], array["start_s"])
        np.maximum.at(last_s, array["step"], array["end_s"])
        done = np.isfinite(first_s)
        cost_s[done] = np.maximum(cost_s[done], last_s[done] - first_s[done])
        busy_s += float((array["end_s"] - array["start_s"]).sum())
    total_s = float(cost_s.sum())
    return 1 - busy_s / len(ranks) / total_s if total_s else 0.0
