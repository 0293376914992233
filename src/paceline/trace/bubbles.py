"""Bubbles: the fraction of time in which the ranks of a pipeline do not compute.

The cost of a step is the longest time from the start of a rank's first pass to the end of its last. The bubble is the
cost minus the mean compute time of a rank, as a fraction of the cost. Several steps are summed.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2024, with the same definition of the rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.trace.spans import COMPUTING, Spans


def bubble(spans: Sequence[Spans]) -> float:
    """Return the mean bubble of all ranks; 0 if no rank computes."""
    found = bubbles(spans)
    return sum(found.values()) / len(found) if found else 0.0


def bubbles(spans: Sequence[Spans]) -> dict[int, float]:
    """Return, for each rank that computes, the fraction of the cost in which it does not."""
    ranks = {each.rank: array for each in spans if len(array := each.of(*COMPUTING))}
    if not ranks:
        return {}
    steps = np.unique(np.concatenate([array["step"] for array in ranks.values()]))
    cost_s, busy_s = np.zeros(len(steps)), {}
    for rank, array in ranks.items():
        step = np.searchsorted(steps, array["step"])
        first_s, last_s = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
        np.minimum.at(first_s, step, array["start_s"])
        np.maximum.at(last_s, step, array["end_s"])
        done = np.isfinite(first_s)
        cost_s[done] = np.maximum(cost_s[done], last_s[done] - first_s[done])
        busy_s[rank] = float((array["end_s"] - array["start_s"]).sum())
    total_s = float(cost_s.sum())
    return {rank: 1 - seconds / total_s if total_s else 0.0 for rank, seconds in busy_s.items()}
