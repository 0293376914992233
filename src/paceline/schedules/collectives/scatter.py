"""Scatter: rank r ends with chunk r of the root's data.

The root sends each rank its chunk, all in one round.

Cost, n bytes: a + n b (p - 1)/p, all of it at the root's out port.
Source: MPI_Scatter; Thakur, Rabenseifner, Gropp 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.steps import Chunks, Recv, Schedule, Send


def schedule(rank: int, size: int, root: int = 0) -> Schedule:
    check_group(rank, size, root)
    if rank != root:
        return Schedule(size, ((Recv(root, Chunks(rank, rank + 1)),),))
    sends = tuple(Send(target, Chunks(target, target + 1)) for target in range(size) if target != root)
    return Schedule(size, (sends,) if sends else ())
