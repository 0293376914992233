"""The optimal checkpoint interval: short intervals cost time, long ones lose work.

Sources: Young, "A first order approximation to the optimum checkpoint interval", Comm. of the ACM 17, 1974; Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", Future Gener. Comp. Sy. 22, 2006.
"""

from __future__ import annotations

import math


def young_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Return the seconds between checkpoints. Assumes that a checkpoint is much shorter than the time to failure."""
    return math.sqrt(2 * checkpoint_s * failures_every_s)


def daly_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Return the seconds of work between checkpoints. Close to Young's, and also valid for long checkpoints."""
    if checkpoint_s >= 2 * failures_every_s:
        return failures_every_s
    share = checkpoint_s / (2 * failures_every_s)
    return young_s(checkpoint_s, failures_every_s) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint_s
