"""Gather: the root ends with chunk r of every rank r.

All ranks send at once. The chunks are received into distinct memory, so the root accepts them in any order.

Cost, n bytes: a + n b (p - 1)/p, all of it at the root's in port.
Source: MPI_Gather; Thakur, Rabenseifner, Gropp 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.steps import Chunks, Recv, Schedule, Send


def schedule(rank: int, size: int, root: int = 0) -> Schedule:
    check_group(rank, size, root)
    if rank != root:
        return Schedule(size, ((Send(root, Chunks(rank, rank + 1)),),))
    receives = tuple(Recv(source, Chunks(source, source + 1)) for source in range(size) if source != root)
    return Schedule(size, (receives,) if receives else ())
