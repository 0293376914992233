from __future__ import annotations

import pytest
from refusals import has, raised

from paceline.schedules.collectives import barrier
from paceline.schedules.collectives.count import count
from paceline.testing.schedules.validate import ScheduleError, validate


@pytest.mark.parametrize(("size", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (16, 4), (17, 5)])
def test_a_barrier_takes_lg_p_rounds_of_empty_messages(size: int, rounds: int):
    traffic = count([barrier.schedule(rank, size) for rank in range(size)], 1000, 4)
    assert traffic.sequence == rounds
    assert traffic.messages_sent == (rounds,) * size
    assert traffic.bytes_sent == (0,) * size


def test_a_barrier_short_of_a_round_lets_ranks_leave_early():
    schedules = [barrier.schedule(rank, 5) for rank in range(5)]
    short = [type(schedule)(1, schedule.rounds[:-1]) for schedule in schedules]
    with raised(ScheduleError, rank=0, fault="goal", problem=has("[1]")):
        validate(short, "barrier")
