"""Updates of ranks that run independently are counted per generation."""

from paceline.clusters.rank.counter import LATE, UpdateCounter


def test_no_two_updates_have_the_same_number():
    counter = UpdateCounter()
    assert [counter.count(0) for _ in range(3)] == [1, 2, 3]


def test_a_leg_counts_on_from_where_it_begins_whatever_was_counted_too_far():
    counter = UpdateCounter()
    for _ in range(7):  # two of them were beyond the end of the generation, and were not made
        counter.count(0)
    assert [counter.count(5), counter.count(5)] == [6, 7]


def test_a_rank_that_is_late_for_a_leg_gets_a_number_beyond_any_run():
    counter = UpdateCounter()
    counter.count(5)
    assert counter.count(0) == LATE
    assert counter.count(5) == 7
