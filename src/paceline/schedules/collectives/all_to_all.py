"""All-to-all: chunk j of rank r becomes chunk r of rank j, for all pairs.

In round d every rank sends to the rank d after it and receives from the rank d before it, so no port is ever shared.
Received chunks must not overwrite chunks that are still to be sent, so they stay in the scratch buffer until the end.
Chunk r of one rank replaces chunk j of another, so the length of the data must be a multiple of p.

Cost, n bytes: (p - 1) a + n b (p - 1)/p.
Source: the pairwise exchange of Thakur, Rabenseifner, Gropp 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.plan import GroupPlan, shifted_chunks
from paceline.schedules.collectives.steps import Buffer, Chunks, Copy, Recv, Round, Schedule, Send


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    rounds: list[Round] = []
    for distance in range(1, size):
        target, source = (rank + distance) % size, (rank - distance) % size
        received = Chunks(source, source + 1, Buffer.SCRATCH)
        rounds.append((Send(target, Chunks(target, target + 1)), Recv(source, received)))
    # A rank's own chunk is in place from the start.
    others = [(0, rank), (rank + 1, size)]
    copies = tuple(Copy(Chunks(a, b, Buffer.SCRATCH), Chunks(a, b)) for a, b in others if a < b)
    return Schedule(size, (*rounds, copies) if copies else ())


def plan(size: int) -> GroupPlan:
    """Return the same schedule for the whole group, as arrays."""
    return shifted_chunks(size, [(distance, distance) for distance in range(1, size)])
