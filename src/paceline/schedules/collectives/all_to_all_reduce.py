"""All-reduce by all-to-all exchange: each rank sends its whole vector to every other rank, and adds.

Every rank stores all p vectors until all have arrived, then adds them in ascending order of rank, including its own.
Adding on arrival would give each rank a different order, and so different rounding.

Cost, n bytes: (p - 1) n b + a; each rank sends (p - 1) n and holds p n.
Source: the textbook all-gather with local reduction; costs as in Thakur, Rabenseifner, Gropp 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group
from paceline.schedules.collectives.steps import (
    Accumulate,
    Buffer,
    Chunks,
    Copy,
    Recv,
    Round,
    Schedule,
    Send,
    Step,
)

_WHOLE = Chunks(0, 1)


def _slot(rank: int) -> Chunks:
    return Chunks(rank, rank + 1, Buffer.SCRATCH)


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    if size == 1:
        return Schedule(1, ())
    exchange: list[Step] = [Copy(_WHOLE, _slot(rank))]
    # At distance d all ranks send to different ranks, so that no input port receives two messages at the same time.
    for distance in range(1, size):
        source = (rank - distance) % size
        exchange += [Send((rank + distance) % size, _WHOLE), Recv(source, _slot(source))]
    first: Round = (Copy(_slot(0), _WHOLE),)
    rest = tuple((Accumulate(_slot(source), _WHOLE),) for source in range(1, size))
    return Schedule(1, (tuple(exchange), first, *rest), scratch=size)
