from __future__ import annotations

import pytest

from paceline.schedules.collectives import group_plan, naive_ring
from paceline.schedules.collectives.count import count


@pytest.mark.parametrize("size", [2, 3, 7])
def test_one_link_works_at_a_time(size: int):
    plan = group_plan("all-reduce", "naive-ring", size)
    assert [len(part.starts) for part in plan.rounds()] == [1] * (2 * (size - 1))


def test_every_rank_that_is_not_at_an_end_of_a_lap_sends_twice():
    traffic = count([naive_ring.schedule(rank, 6) for rank in range(6)], 10, 8)
    assert traffic.messages_sent == (2, 2, 2, 2, 1, 1)
