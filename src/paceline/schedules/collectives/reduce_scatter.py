"""Reduce-scatter around a ring: rank r ends with the sum of chunk r over all ranks.

Chunk c starts at rank c + 1. Each hop adds the data of one rank, until the sum is complete at rank c. So the order
of the sum is c + 1, c + 2, …, c. The other chunks of a rank are undefined afterwards.

Cost, n bytes: (p - 1) a + n b (p - 1)/p, with the minimum number of bytes.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.plan import GroupPlan, shifted_chunks
from paceline.schedules.collectives.steps import Chunks, Reduce, Schedule, Send


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    chunks = [Chunks(i, i + 1) for i in range(size)]
    before, after = (rank - 1) % size, (rank + 1) % size
    return Schedule(
        size,
        tuple(
            (Send(after, chunks[(rank - 1 - hop) % size]), Reduce(before, chunks[(rank - 2 - hop) % size]))
            for hop in range(size - 1)
        ),
    )


def plan(size: int) -> GroupPlan:
    """Return the same schedule for the whole group, as arrays."""
    return shifted_chunks(size, [(1, -1 - hop) for hop in range(size - 1)])
