"""Ranks that compute and meet in rings: when each is where."""

import numpy as np
import pytest

from paceline.clusters.simulated.run_plan import ring_of
from paceline.clusters.simulated.run_times import (
    Apart,
    EachMark,
    Guest,
    Links,
    Mark,
    follow_each,
    follow_together,
)
from paceline.schedules.collective import Collective
from paceline.schedules.timing import time_schedule

SIZE, LATENCY_S, PER_BYTE_S = 5, 0.25, 0.5
LINKS = Links([LATENCY_S] * SIZE, [PER_BYTE_S] * SIZE, range(SIZE))


def guests_at(*arrivals_s: float) -> list[Guest]:
    return [Guest(arrives_s, arrives_s - 1, 9, 2.0) for arrives_s in arrivals_s]


@pytest.mark.parametrize("goal", ["all-reduce", "reduce-scatter", "all-gather"])
@pytest.mark.parametrize("nbytes", [20, 23], ids=["even", "uneven"])
def test_a_ring_of_ranks_apart_ends_when_its_schedule_does(goal, nbytes):
    arrivals_s = [0.0, 3.5, 1.25, 0.5, 9.0]
    marks = [EachMark(arrivals_s, [0.0] * SIZE, [0.0] * SIZE, [0] * SIZE)]
    in_free_s = follow_each([((), ring_of(goal, SIZE, nbytes))], marks, LINKS, [[] for _ in range(SIZE)])
    timing = time_schedule(
        Collective(goal, "ring", SIZE).plan(),
        length=nbytes,
        itemsize=1,
        arrivals_s=np.array(arrivals_s),
        latency_s=LATENCY_S,
        seconds_per_byte=PER_BYTE_S,
    )
    assert marks[-1].now_s == timing.finish_s.tolist()
    assert in_free_s == timing.in_free_s.tolist()


@pytest.mark.parametrize("arrivals_s", [(), (3.0,), (3.0, 3.125, 40.0)], ids=["alone", "one", "three"])
def test_ranks_together_are_where_each_of_them_is(arrivals_s):
    ring = ring_of("all-reduce", SIZE, 20)
    steps = [(2.0, 0, 0.0), (0.0, ring.rounds, 4 * PER_BYTE_S), (1.0, 0, 0.0)]
    one, all_of_them = [Mark(0.5, 0.5, 0.5, 0)], [EachMark(*([[0.5] * SIZE] * 3), [0] * SIZE)]
    ours, theirs = guests_at(*arrivals_s), [guests_at(*arrivals_s) for _ in range(SIZE)]
    in_free_s = follow_together(steps, one, LATENCY_S, ours)
    each_steps = [([2.0] * SIZE, None), ((), ring), ([1.0] * SIZE, None)]
    assert follow_each(each_steps, all_of_them, LINKS, theirs) == [in_free_s] * SIZE
    assert [mark.now_s for mark in one] == [mark.now_s[3] for mark in all_of_them]
    assert ours == theirs[3]


def test_a_message_on_its_way_delays_the_ring_by_its_turn():
    ring = ring_of("all-reduce", SIZE, 20)
    steps = [(2.0, 0, 0.0), (0.0, ring.rounds, 4 * PER_BYTE_S)]
    alone, delayed = [Mark(0.0, 0.0, 0.0, 0)], [Mark(0.0, 0.0, 0.0, 0)]
    follow_together(steps, alone, LATENCY_S, [])
    follow_together(
        steps, delayed, LATENCY_S, guests_at(2.0)
    )  # holds the port until 4.0; the ring comes at 2.25
    assert delayed[-1].now_s - alone[-1].now_s == pytest.approx(1.75)


def test_messages_of_one_instant_and_start_part_the_ranks():
    ring = ring_of("all-reduce", SIZE, 20)
    guest = Guest(2.0 + LATENCY_S, 2.0, 9, 2.0)
    with pytest.raises(Apart):
        follow_together(
            [(2.0, 0, 0.0), (0.0, ring.rounds, 1.0)], [Mark(0.0, 0.0, 0.0, 0)], LATENCY_S, [guest]
        )
