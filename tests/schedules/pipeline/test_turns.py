from __future__ import annotations

from paceline.schedules.pipeline.actions import Action, Phase
from paceline.schedules.pipeline.turns import in_turns, weights_later

FORWARDS = [Action(Phase.FORWARD, micro) for micro in range(4)]
BACKWARDS = [Action(Phase.BACKWARD, micro) for micro in range(4)]


def words(actions) -> str:
    return " ".join(map(str, actions))


def test_forwards_and_backwards_take_turns_after_the_first_forwards():
    assert words(in_turns(FORWARDS, BACKWARDS, first=2)) == "F0 F1 F2 BW0 F3 BW1 BW2 BW3"


def test_more_first_forwards_than_there_are_is_all_of_them():
    assert words(in_turns(FORWARDS, BACKWARDS, first=9)) == "F0 F1 F2 F3 BW0 BW1 BW2 BW3"


def test_weights_follow_the_inputs_of_a_later_micro_batch():
    parted = weights_later(in_turns(FORWARDS, BACKWARDS, first=0), lag=2)
    assert words(parted) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_without_a_lag_the_two_parts_stand_together():
    assert words(weights_later(tuple(BACKWARDS[:2]), lag=0)) == "B0 W0 B1 W1"
