"""The ends of a run's generations."""

import pytest

from paceline.checkpoints.generations import NEVER, GenerationPlan


@pytest.mark.parametrize(("first", "end"), [(0, 4), (3, 4), (4, 8), (9, 12)])
def test_a_leg_ends_at_the_next_multiple(first, end):
    assert GenerationPlan(every=4).end_of(first) == end


def test_without_a_number_of_steps_a_leg_ends_with_the_run():
    assert GenerationPlan().end_of(3) == NEVER
    assert not GenerationPlan().are_many


@pytest.mark.parametrize(("end", "rounded"), [(5, 6), (6, 6), (7, 9)])
def test_a_leg_ends_where_all_models_have_had_their_turn(end, rounded):
    assert GenerationPlan(multiple=3).rounded(end) == rounded
