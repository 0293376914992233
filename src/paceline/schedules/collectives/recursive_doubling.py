"""All-reduce by exchanging whole vectors with a partner at distance 1, 2, 4, …

Each round doubles the number of vectors that a rank has summed. Both partners compute the same sum, own + received:
IEEE addition is commutative, so the bits are equal. If p is not a power of two, the ranks above the largest power first
send their data to a lower rank, and receive the result at the end.

Cost, n bytes, p = 2^k: lg p (a + n b); otherwise at least (2 + floor(lg p)) (a + n b). It is more if messages wait
for each other at an input port. For short messages.
Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group, largest_power_of_two
from paceline.schedules.collectives.steps import Buffer, Chunks, Copy, Recv, Reduce, Round, Schedule, Send

_WHOLE = Chunks(0, 1)
_OLD = Chunks(0, 1, Buffer.SCRATCH)


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    core = largest_power_of_two(size)
    if rank >= core:
        return Schedule(1, ((Send(rank - core, _WHOLE),), (Recv(rank - core, _WHOLE),)))
    rounds: list[Round] = []
    for bit in range(core.bit_length() - 1):
        partner = rank ^ (1 << bit)
        # The old value is sent from a copy, because the sum overwrites the data during the send.
        rounds += [(Copy(_WHOLE, _OLD),), (Send(partner, _OLD), Reduce(partner, _WHOLE))]
    if rank + core < size:
        rounds = [(Reduce(rank + core, _WHOLE),), *rounds, (Send(rank + core, _WHOLE),)]
    return Schedule(1, tuple(rounds))
