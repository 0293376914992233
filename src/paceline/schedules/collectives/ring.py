"""All-reduce around a ring, chunk by chunk: a reduce-scatter, then an all-gather.

Every link is busy in every round. Chunk c is summed once, in the order c + 1, c + 2, …, c, and then copied, so all
ranks hold the same bits.

Cost, n bytes: 2 (p - 1) a + 2 n b (p - 1)/p, the minimum. Each rank sends 2 n (p - 1)/p bytes.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from paceline.schedules.collectives import all_gather, reduce_scatter
from paceline.schedules.collectives.plan import GroupPlan, in_sequence
from paceline.schedules.collectives.steps import Schedule


def schedule(rank: int, size: int) -> Schedule:
    return Schedule(size, reduce_scatter.schedule(rank, size).rounds + all_gather.schedule(rank, size).rounds)


def plan(size: int) -> GroupPlan:
    """Return the same schedule for the whole group, as arrays."""
    return in_sequence([reduce_scatter.plan(size), all_gather.plan(size)])
