"""Broadcast: every rank ends with the root's data.

`tree` doubles the number of ranks that hold the data in each round. In `flat` the root sends directly to every rank.

Cost, n bytes: tree ceil(lg p) (a + n b); flat a + (p - 1) n b, the root's out port being the bottleneck.
Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group, largest_power_of_two
from paceline.schedules.collectives.steps import Chunks, Recv, Round, Schedule, Send

_WHOLE = Chunks(0, 1)


def tree(rank: int, size: int, root: int = 0) -> Schedule:
    """Binomial tree, farthest first: at distance d, the holders (multiples v of 2d) send to v + d."""
    check_group(rank, size, root)
    position = (rank - root) % size
    rounds: list[Round] = []
    distance = largest_power_of_two(size)
    while distance:
        if position % (2 * distance) == distance:
            rounds.append((Recv((rank - distance) % size, _WHOLE),))
        elif position % (2 * distance) == 0 and position + distance < size:
            rounds.append((Send((rank + distance) % size, _WHOLE),))
        distance //= 2
    return Schedule(1, tuple(rounds))


def flat(rank: int, size: int, root: int = 0) -> Schedule:
    """Flat broadcast: all sends are in one round, so that their latencies overlap and only the port serializes
    them."""
    check_group(rank, size, root)
    if rank != root:
        return Schedule(1, ((Recv(root, _WHOLE),),))
    sends = tuple(Send(target, _WHOLE) for target in range(size) if target != root)
    return Schedule(1, (sends,) if sends else ())
