"""All-reduce of the whole vector around a ring, in two laps.

In the first lap the sum is built up from rank 0 to rank p - 1. In the second lap the result is passed on. Only one
link is busy at a time. This algorithm exists for comparison with `ring`, which keeps all links busy.

Cost, n bytes: 2 (p - 1) (a + n b); a rank sends at most 2n.
Source: the textbook ring, improved by Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.steps import Chunks, Recv, Reduce, Round, Schedule, Send

_WHOLE = Chunks(0, 1)


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    before, after, last = (rank - 1) % size, (rank + 1) % size, size - 1
    rounds: list[Round] = []
    if rank > 0:
        rounds.append((Reduce(before, _WHOLE),))
    if rank < last:
        rounds.append((Send(after, _WHOLE),))
        rounds.append((Recv(before, _WHOLE),))
    # The second lap starts at the last rank, which has the sum, and ends at its predecessor.
    if size > 1 and rank != last - 1:
        rounds.append((Send(after, _WHOLE),))
    return Schedule(1, tuple(rounds))
