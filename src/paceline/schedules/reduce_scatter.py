"""Reduce-scatter around a ring: rank r ends with the sum of everybody's chunk r.

Chunk c starts at rank c + 1 and grows by one rank a hop until it is whole at rank c: it is summed in the
order c + 1, c + 2, …, c. What a rank holds of the other chunks afterwards is no part of the promise.

Cost, n bytes: (p - 1) a + n b (p - 1)/p, the least bytes possible.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

from paceline.schedules.group import check_group
from paceline.schedules.plan import GroupPlan, shifted_chunks
from paceline.schedules.steps import Chunks, Reduce, Schedule, Send

__all__ = ["plan", "schedule"]


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
    """The same for the whole group, as arrays."""
    return shifted_chunks(size, [(1, -1 - hop) for hop in range(size - 1)])
