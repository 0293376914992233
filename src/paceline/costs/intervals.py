"""How often a checkpoint is best written: often costs time, seldom loses work.

Sources: Young, "A first order approximation to the optimum checkpoint interval", Comm. of the ACM 17, 1974; Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", Future Gener. Comp. Sy. 22, 2006.
"""

from __future__ import annotations

import math

__all__ = ["daly_s", "young_s"]


def young_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Seconds from one checkpoint to the next, where a checkpoint takes much less than passes between failures."""
    return math.sqrt(2 * checkpoint_s * failures_every_s)


def daly_s(checkpoint_s: float, failures_every_s: float) -> float:
    """Seconds of work between two checkpoints. Nearly Young's, and right where checkpoints take long too."""
    if checkpoint_s >= 2 * failures_every_s:
        return failures_every_s
    share = checkpoint_s / (2 * failures_every_s)
    return young_s(checkpoint_s, failures_every_s) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint_s
