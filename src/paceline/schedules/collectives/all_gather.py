"""All-gather around a ring: rank r starts with chunk r, and every rank ends with every chunk.

In each round a rank forwards the chunk that it received in the previous round.

Cost, n bytes: (p - 1) a + n b (p - 1)/p, with the minimum number of bytes.
Source: Thakur, Rabenseifner, Gropp 2005; Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.plan import GroupPlan, shifted_chunks
from paceline.schedules.collectives.steps import Chunks, Recv, Schedule, Send


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    chunks = [Chunks(i, i + 1) for i in range(size)]
    before, after = (rank - 1) % size, (rank + 1) % size
    return Schedule(
        size,
        tuple(
            (Send(after, chunks[(rank - hop) % size]), Recv(before, chunks[(rank - 1 - hop) % size]))
            for hop in range(size - 1)
        ),
    )


def plan(size: int) -> GroupPlan:
    """Return the same schedule for the whole group, as arrays."""
    return shifted_chunks(size, [(1, -hop) for hop in range(size - 1)])
