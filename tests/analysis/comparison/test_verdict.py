from paceline.analysis.comparison.table import Row
from paceline.analysis.comparison.verdict import order, within_spread


def test_the_first_to_reach_the_target_is_the_best():
    slow = Row(name="slow", target=0.9, seconds_to_target=3.0, samples_per_s=900.0)
    quick = Row(name="quick", target=0.9, seconds_to_target=2.0, samples_per_s=10.0)
    never = Row(name="never", target=0.9, samples_per_s=999.0)
    assert [row.name for row in order([slow, never, quick])] == ["quick", "slow"]


def test_without_a_target_the_most_samples_a_second_are_the_best():
    few, many = Row(name="few", samples_per_s=10.0), Row(name="many", samples_per_s=20.0)
    failed = Row(name="failed", error="why")
    assert [row.name for row in order([few, failed, many])] == ["many", "few"]


def test_repeats_that_overlap_may_be_chance():
    first = Row(name="first", seconds=1.0, spread=(0.8, 1.2))
    assert within_spread(first, Row(name="near", seconds=1.3, spread=(1.1, 1.5)))
    assert not within_spread(first, Row(name="far", seconds=2.0, spread=(1.9, 2.1)))
    assert not within_spread(first, Row(name="once", seconds=1.1))
