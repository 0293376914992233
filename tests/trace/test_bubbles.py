import pytest

from paceline.trace import Kind, Recorder, Trace
from paceline.trace.bubbles import bubble, bubbles


def spans(rank, *rows):
    recorder = Recorder(rank, "worker")
    for kind, start_s, end_s, step in rows:
        recorder.add(kind, start_s, end_s, 0, 0, step)
    return recorder.pack()


def test_a_rank_that_always_computes_has_none():
    assert bubble([spans(0, (Kind.FORWARD, 0, 1, 0), (Kind.BACKWARD, 1, 3, 0))]) == 0


def test_it_is_what_is_idle_of_the_longest_ranks_time():
    first = spans(0, (Kind.FORWARD, 0, 1, 0), (Kind.BACKWARD, 3, 4, 0))
    second = spans(1, (Kind.FORWARD, 1, 2, 0), (Kind.BACKWARD, 2, 3, 0))
    assert bubble([first, second]) == pytest.approx(0.5)


def test_time_between_steps_does_not_count_nor_what_is_no_computing():
    one = spans(
        0, (Kind.FORWARD, 0, 1, 0), (Kind.WAIT, 1, 5, 0), (Kind.FORWARD, 5, 6, 1), (Kind.WEIGHTS, 7, 8, 1)
    )
    assert bubble([one]) == pytest.approx(1 / 4)


def test_ranks_that_never_compute_do_not_count():
    assert bubble([spans(0, (Kind.COMPUTE, 0, 1, 0)), spans(1, (Kind.UPDATE, 0, 1, 0))]) == 0
    assert bubble([]) == 0


def test_a_trace_has_it():
    assert Trace([spans(0, (Kind.COMPUTE, 0, 1, 0))], 1.0).bubble == 0


def test_each_rank_has_a_share_of_its_own_and_the_bubble_is_their_mean():
    ranks = [spans(0, (Kind.FORWARD, 0, 4, 0)), spans(1, (Kind.FORWARD, 1, 2, 0))]
    assert bubbles(ranks) == {0: 0.0, 1: 0.75}
    assert bubble(ranks) == pytest.approx(0.375)
    assert bubbles([]) == {}
