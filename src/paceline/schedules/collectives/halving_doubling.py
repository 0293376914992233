"""All-reduce by recursive halving, then recursive doubling.

Ranks exchange halves, quarters, … until rank r holds the sum of chunk r. Then they reverse the exchanges until every
rank holds all chunks. If p is not a power of two, the ranks above the largest power first send their data to a lower
rank, and receive the result at the end.

Cost, n bytes, p = 2^k: 2 lg p a + 2 n b (p - 1)/p; otherwise at least 2 (a + n b) more.
Source: Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005.
"""

from __future__ import annotations

from paceline.schedules.collectives.group import check_group, largest_power_of_two
from paceline.schedules.collectives.steps import Chunks, Recv, Reduce, Round, Schedule, Send


def schedule(rank: int, size: int) -> Schedule:
    check_group(rank, size)
    core = largest_power_of_two(size)
    whole = Chunks(0, core)
    if rank >= core:
        return Schedule(core, ((Send(rank - core, whole),), (Recv(rank - core, whole),)))
    halving: list[Round] = []
    doubling: list[Round] = []
    for bit in reversed(range(core.bit_length() - 1)):
        partner = rank ^ (1 << bit)
        kept, given = _half(rank, bit), _half(partner, bit)
        halving.append((Send(partner, given), Reduce(partner, kept)))
        doubling.append((Send(partner, kept), Recv(partner, given)))
    rounds = [*halving, *reversed(doubling)]
    if rank + core < size:
        rounds = [(Reduce(rank + core, whole),), *rounds, (Send(rank + core, whole),)]
    return Schedule(core, tuple(rounds))


def _half(rank: int, bit: int) -> Chunks:
    """Return the 2^bit chunks around chunk `rank`: what the rank keeps after the exchange at distance 2^bit."""
    start = rank >> bit << bit
    return Chunks(start, start + (1 << bit))
