"""Barrier by dissemination: no rank leaves before all ranks have entered.

In round k a rank notifies the rank 2^k after it, and is notified by the rank 2^k before it. A notification covers all
ranks that have notified the sender so far. The messages are empty.

Cost: ceil(lg p) a.
Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.steps import Chunks, Recv, Round, Schedule, Send

_NOTHING = Chunks(0, 0)


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    rounds: list[Round] = []
    distance = 1
    while distance < size:
        rounds.append((Send((rank + distance) % size, _NOTHING), Recv((rank - distance) % size, _NOTHING)))
        distance *= 2
    return Schedule(1, tuple(rounds))
