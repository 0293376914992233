"""The optimal checkpoint interval: short intervals cost time, long ones lose work.

Sources: Young, "A first order approximation to the optimum checkpoint interval", Comm. of the ACM 17, 1974; Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", Future Gener. Comp. Sy. 22, 2006.
"""

from __future__ import annotations

import math

import numpy as np


def young_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Return the seconds between checkpoints. Assumes that a checkpoint is much shorter than the time to failure."""
    return math.sqrt(2 * checkpoint_s * failures_every_s)


def daly_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Return the seconds of work between checkpoints. Close to Young's, and also valid for long checkpoints."""
    if checkpoint_s >= 2 * failures_every_s:
        return failures_every_s
    share = checkpoint_s / (2 * failures_every_s)
    return young_s(checkpoint_s, failures_every_s) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint_s


def simulated_goodput(
    interval_s: float, checkpoint_s: float, failures_every_s: float, *, failures: int = 20_000, seed: int = 0
) -> float:
    """Return the share of the time that a run spends on work that it does not lose.

    The run fails at random (exponential times with this mean), and resumes from its newest checkpoint. The start of its
    processes takes no time.
    """
    times_s = np.random.default_rng(seed).exponential(failures_every_s, failures)
    completed = np.floor(times_s / (interval_s + checkpoint_s))  # intervals whose checkpoint was completed
    return float(completed.sum() * interval_s / times_s.sum())


def best_interval_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Return the seconds of work between checkpoints with the highest simulated goodput."""
    near_s = young_s(checkpoint_s, failures_every_s) * np.geomspace(0.1, 10, 201)
    return float(max(near_s, key=lambda each: simulated_goodput(each, checkpoint_s, failures_every_s)))
