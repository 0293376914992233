from __future__ import annotations

from paceline.schedules.pipeline.actions import Action, Phase, stage_of


def test_an_action_is_written_short():
    assert str(Action(Phase.FORWARD, 3)) == "F3"
    assert str(Action(Phase.WEIGHTS, 0, 2)) == "W0.2"


def test_a_backward_in_one_gives_what_its_two_parts_give():
    assert Phase.BACKWARD.gives_inputs
    assert Phase.BACKWARD.gives_weights
    assert not Phase.INPUTS.gives_weights
    assert not Phase.WEIGHTS.gives_inputs


def test_segments_go_round_the_ranks_once_for_each_chunk():
    places = [(chunk, rank) for chunk in range(3) for rank in range(4)]
    assert [stage_of(rank, chunk, 4) for chunk, rank in places] == list(range(12))
