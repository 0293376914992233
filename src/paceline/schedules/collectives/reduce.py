"""Reduce: the root ends with the sum of every rank's data.

In `tree` pairs of ranks combine, then pairs of pairs. In `flat` every rank sends to the root, which combines in
ascending order of rank, its own data first. The data of the other ranks is undefined afterwards.

Cost, n bytes: tree ceil(lg p) (a + n b); flat a + (p - 1) n b, the root's in port being the bottleneck.
Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.steps import Chunks, Reduce, Round, Schedule, Send

_WHOLE = Chunks(0, 1)


def tree(rank: int, size: int, root: int = 0) -> Schedule:
    """Binomial tree. At distance d, a position v with bit d set sends its sum to v - d and is done."""
    check_group(rank, size, root)
    position = (rank - root) % size
    rounds: list[Round] = []
    distance = 1
    while distance < size:
        if position & distance:
            rounds.append((Send((rank - distance) % size, _WHOLE),))
            break
        if position + distance < size:
            rounds.append((Reduce((rank + distance) % size, _WHOLE),))
        distance *= 2
    return Schedule(1, tuple(rounds))


def flat(rank: int, size: int, root: int = 0) -> Schedule:
    """Flat reduce: all ranks send at once. One round per source fixes the order of the sum, in the root's memory."""
    check_group(rank, size, root)
    if rank != root:
        return Schedule(1, ((Send(root, _WHOLE),),))
    return Schedule(1, tuple((Reduce(source, _WHOLE),) for source in range(size) if source != root))
