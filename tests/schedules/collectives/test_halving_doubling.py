from __future__ import annotations

import pytest

from paceline.schedules.collectives import halving_doubling
from paceline.schedules.collectives.steps import Reduce, Send


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_each_exchange_moves_half_as_much_as_the_one_before_until_rank_r_holds_chunk_r(size: int):
    for rank in range(size):
        rounds = halving_doubling.schedule(rank, size).rounds
        reduced = [step.chunks for steps in rounds for step in steps if isinstance(step, Reduce)]
        assert [chunks.stop - chunks.start for chunks in reduced] == [
            size >> (i + 1) for i in range(len(reduced))
        ]
        assert (reduced[-1].start, reduced[-1].stop) == (rank, rank + 1)


def test_ranks_above_the_power_of_two_give_and_get_the_whole_vector():
    first, last = halving_doubling.schedule(5, 6).rounds
    assert first == (Send(1, first[0].chunks),)
    assert (last[0].source, last[0].chunks.start, last[0].chunks.stop) == (1, 0, 4)
