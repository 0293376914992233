from __future__ import annotations

import pytest

from paceline.schedules.collectives import reduce_scatter


@pytest.mark.parametrize("size", [2, 3, 6])
def test_rank_r_owns_the_sum_of_chunk_r_added_last(execute, size: int):
    names = [[str(rank)] * size for rank in range(size)]
    schedules = [reduce_scatter.schedule(rank, size) for rank in range(size)]
    ends = execute(schedules, names, lambda own, received: f"{received}+{own}")
    for rank in range(size):
        assert ends[rank][rank] == "+".join(str((rank + 1 + hop) % size) for hop in range(size))
