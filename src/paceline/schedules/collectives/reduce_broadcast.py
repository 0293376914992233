"""All-reduce through one rank: all ranks send their data to the root, and the root sends the sum to all.

The sum is taken in ascending order of rank. This is what a single parameter server does.

Cost, n bytes: 2 (p - 1) n b + 2a, all of it at the root's ports; the root sends (p - 1) n.
Source: the textbook flat reduce and broadcast; costs as in Thakur, Rabenseifner, Gropp 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives import broadcast, reduce
from paceline.schedules.collectives.steps import Schedule


def schedule(rank: int, size: int, root: int = 0) -> Schedule:
    return Schedule(1, reduce.flat(rank, size, root).rounds + broadcast.flat(rank, size, root).rounds)
