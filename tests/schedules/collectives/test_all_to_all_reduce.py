from __future__ import annotations

import pytest

from paceline.schedules.collectives import all_to_all_reduce


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_every_rank_adds_in_ascending_order_with_its_own_in_its_place(execute, size: int):
    schedules = [all_to_all_reduce.schedule(rank, size) for rank in range(size)]
    ends = execute(schedules, [[str(rank)] for rank in range(size)], lambda own, other: f"{own}+{other}")
    assert ends == [["+".join(map(str, range(size)))]] * size


def test_all_messages_are_under_way_in_one_round():
    schedule = all_to_all_reduce.schedule(2, 5)
    assert schedule.scratch == 5
    assert len(schedule.rounds[0]) == 1 + 2 * 4
