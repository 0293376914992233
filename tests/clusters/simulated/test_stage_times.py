"""Times at which ranks that compute and join rings reach each step."""

import numpy as np
import pytest

from paceline.clusters.simulated.stage_plan import ring_of
from paceline.clusters.simulated.stage_times import Diverged, Lanes, Mark, OutsideMessage, follow
from paceline.schedules.collectives.collective import Collective
from paceline.schedules.collectives.timing import time_schedule

SIZE, LATENCY_S, PER_BYTE_S = 5, 0.25, 0.5
LANES = Lanes([LATENCY_S] * SIZE, [PER_BYTE_S] * SIZE, range(SIZE))


def messages_at(*arrivals_s: float) -> list[OutsideMessage]:
    return [OutsideMessage(arrives_s, arrives_s - 1, 9, 2.0) for arrives_s in arrivals_s]


def idle(now_s: float | list[float], lanes: int) -> Mark:
    """A mark with ports that have been free from the start."""
    times_s = now_s if isinstance(now_s, list) else [now_s] * lanes
    return Mark(times_s, [0.0] * lanes, [0.0] * lanes, [0] * lanes)


@pytest.mark.parametrize("goal", ["all-reduce", "reduce-scatter", "all-gather"])
@pytest.mark.parametrize("nbytes", [20, 23], ids=["even", "uneven"])
def test_a_ring_of_ranks_apart_ends_when_its_schedule_does(goal, nbytes):
    arrivals_s = [0.0, 3.5, 1.25, 0.5, 9.0]
    marks = [idle(arrivals_s, SIZE)]
    in_free_s = follow([((), ring_of(goal, SIZE, nbytes))], marks, LANES, [[] for _ in range(SIZE)])
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
    one, each = [idle(0.5, 1)], [idle(0.5, SIZE)]
    ours, theirs = [messages_at(*arrivals_s)], [messages_at(*arrivals_s) for _ in range(SIZE)]
    in_free_s = follow([([2.0], None), ((), ring), ([1.0], None)], one, LANES.together, ours)
    steps = [([2.0] * SIZE, None), ((), ring), ([1.0] * SIZE, None)]
    assert follow(steps, each, LANES, theirs) == in_free_s * SIZE
    assert [mark.now_s[0] for mark in one] == [mark.now_s[3] for mark in each]
    assert ours[0] == theirs[3]


def test_a_message_on_its_way_delays_the_ring_by_its_turn():
    steps = [([2.0], None), ((), ring_of("all-reduce", SIZE, 20))]
    alone, delayed = [idle(0.0, 1)], [idle(0.0, 1)]
    follow(steps, alone, LANES.together, [[]])
    # The outside message occupies the port until 4.0. The ring's first message arrives at 2.25.
    follow(steps, delayed, LANES.together, [messages_at(2.0)])
    assert delayed[-1].now_s[0] - alone[-1].now_s[0] == pytest.approx(1.75)


def test_messages_of_one_instant_and_start_part_the_ranks():
    message = OutsideMessage(2.0 + LATENCY_S, 2.0, 9, 2.0)
    steps = [([2.0], None), ((), ring_of("all-reduce", SIZE, 20))]
    with pytest.raises(Diverged):
        follow(steps, [idle(0.0, 1)], LANES.together, [[message]])
