"""PipeDream-2BW: one update per batch of m micro-batches, and two versions of the weights on every stage.

The micro-batches of batch t use the weights after t - 1 batches, on all stages: W(t + 1) = W(t) - lr g(W(t - 1)). Each
stage stores these weights and the newest ones. With one stage nothing is in flight at an update, so no gradient is
stale.

Cost, p equal stages, m >= p micro-batches: m (F + B + W) a step, no bubble in the steady state. Two versions of the
weights; activations of p - s micro-batches at stage s, from 0; gradients that are one update old.
Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (arXiv 2006.09503).
"""

from __future__ import annotations

from paceline.schedules.pipeline.continuous import ContinuousOrder


def _staleness(rank: int, stages: int) -> int:
    return min(1, stages - 1)


def _versions(rank: int, stages: int) -> int:
    return min(2, stages)


PIPEDREAM_2BW = ContinuousOrder(staleness=_staleness, versions=_versions, whole_batches=False)
