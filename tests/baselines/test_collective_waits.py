"""Waiting for the last rank, separated from the sum that follows."""

import numpy as np
import pytest

from paceline.baselines.collective_waits import find_collective_waits
from paceline.trace import Kind, Spans, Trace
from paceline.trace.spans import SPAN


def rank_spans(rank, *spans):
    return Spans(np.array([(*span, -1) for span in spans], dtype=SPAN), rank)


def a_trace():
    """Two steps of three ranks. Rank 1 enters the first sum last, rank 2 the second."""
    entered_s = {0: (1.0, 5.0), 1: (2.0, 4.5), 2: (1.5, 6.0)}
    ended_s = {0: (3.0, 7.0), 1: (3.25, 6.5), 2: (2.75, 7.0)}
    return Trace(
        [
            rank_spans(
                rank,
                (Kind.COMPUTE, 0.0, entered_s[rank][0], -1, 0, 0),
                (Kind.RECEIVE, entered_s[rank][0], ended_s[rank][0], -1, 800, 0),
                (Kind.RECEIVE, ended_s[rank][0], ended_s[rank][0] + 0.25, 0, 8, 1),
                (Kind.RECEIVE, entered_s[rank][1], ended_s[rank][1], -1, 800, 1),
            )
            for rank in range(3)
        ],
        seconds=7.0,
    )


def test_ranks_wait_for_the_one_that_enters_last():
    assert find_collective_waits(a_trace()).summary().waits == {
        (0, 1): 1.0,
        (2, 1): 0.5,
        (0, 2): 1.0,
        (1, 2): 1.5,
    }


def test_what_comes_after_the_last_has_entered_is_communication():
    found = find_collective_waits(a_trace())
    sums = [each.of(Kind.RECEIVE) for each in found.spans]
    sums = [each[each["peer"] < 0] for each in sums]
    assert [(each["end_s"] - each["start_s"]).tolist() for each in sums] == [
        [1.0, 1.0],
        [1.25, 0.5],
        [0.75, 1.0],
    ]
    assert all((each["nbytes"] == 800).all() for each in sums)


def test_the_calls_of_one_sum_have_the_same_meeting_on_every_rank():
    found = find_collective_waits(a_trace()).spans
    sums = [each.of(Kind.RECEIVE)[each.of(Kind.RECEIVE)["peer"] < 0]["message"].tolist() for each in found]
    assert sums[0] == sums[1] == sums[2]
    assert len(set(sums[0])) == 2
    for each in found:
        assert set(each.of(Kind.WAIT)["message"].tolist()) <= set(sums[0])


def test_other_spans_stay_and_no_second_is_lost():
    before, after = a_trace(), find_collective_waits(a_trace())
    assert after.seconds == before.seconds
    for old, new in zip(before.spans, after.spans, strict=True):
        assert old.of(Kind.COMPUTE).tolist() == new.of(Kind.COMPUTE).tolist()
        assert (new.array["end_s"] - new.array["start_s"]).sum() == pytest.approx(
            (old.array["end_s"] - old.array["start_s"]).sum()
        )


def test_a_rank_whose_clock_says_that_it_ended_first_waited_all_the_time():
    early = rank_spans(0, (Kind.RECEIVE, 1.0, 1.5, -1, 8, 0))
    late = rank_spans(1, (Kind.RECEIVE, 2.0, 3.0, -1, 8, 0))
    found = find_collective_waits(Trace([early, late], 3.0)).spans[0]
    assert found.of(Kind.WAIT)[["start_s", "end_s", "peer"]].tolist() == [(1.0, 1.5, 1)]
    assert found.of(Kind.RECEIVE)[["start_s", "end_s"]].tolist() == [(1.5, 1.5)]
