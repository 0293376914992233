"""The time of a computation on a rank that is slow or stopped for a while."""

import math

import pytest

from paceline.costs.slowdowns import Slowdowns


def slowdowns(*intervals):
    made = Slowdowns()
    for start_s, seconds, factor in intervals:
        made.add(start_s, seconds, factor)
    return made


@pytest.mark.parametrize(
    ("start_s", "work_s", "elapsed_s"),
    [
        (0, 10, 10),  # ends when the slowdown begins
        (0, 12, 18),  # 10, then 2 x 4
        (10, 1, 4),
        (10, 10, 25),  # 5 done in the 20 s of the slowdown
        (15, 3.75, 15),
        (30, 3, 3),
        (0, 0, 0),
    ],
)
def test_work_within_a_slowdown_takes_longer_by_its_factor(start_s, work_s, elapsed_s):
    assert slowdowns((10, 20, 4.0)).elapsed_s(start_s, work_s) == pytest.approx(elapsed_s)


def test_no_work_is_done_in_a_pause():
    paused = slowdowns((10, 5, math.inf))
    assert paused.elapsed_s(8, 4) == 9
    assert paused.elapsed_s(12, 1) == 4
    assert (paused.resumes_s(9), paused.resumes_s(10), paused.resumes_s(14.5), paused.resumes_s(15)) == (
        9,
        15,
        15,
        15,
    )


def test_the_larger_of_two_factors_counts_and_pauses_may_touch():
    both = slowdowns((0, 10, 2.0), (0, 10, 5.0), (10, 1, math.inf), (11, 1, math.inf))
    assert both.elapsed_s(0, 2) == 10
    assert both.resumes_s(10.5) == 12
    assert not slowdowns()
    assert both
