"""All-reduce over a binomial tree: reduce to the root, then broadcast the result down the same tree.

It needs few messages in sequence, but each has the whole vector. So it is for short messages.

Cost, n bytes: 2 ceil(lg p) (a + n b); the root sends n lg p.
Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives import broadcast, reduce
from paceline.schedules.collectives.steps import Schedule


def schedule(rank: int, size: int, root: int = 0) -> Schedule:
    return Schedule(1, reduce.tree(rank, size, root).rounds + broadcast.tree(rank, size, root).rounds)
