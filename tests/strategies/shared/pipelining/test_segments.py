"""A stage is its segments, one after the other."""

from by_hand import cut_of
from segmented_models import gpt_task

from paceline.strategies.shared.pipelining.segments import held_segments


def test_a_rank_holds_the_segments_of_its_stages():
    cut = cut_of(gpt_task(), 3)
    assert held_segments(cut.segments, 3) == [[0], [1], [2]]
    assert held_segments(cut.segments, 2) == [[0, 2], [1]]


def test_the_segments_of_a_stage_follow_each_other():
    cut = cut_of(gpt_task(), 2, finer=3)
    assert held_segments(cut.segments, 2) == [[0, 1, 2], [3, 4, 5]]
    assert [segment.number for segment in cut.segments] == list(range(6))
