from __future__ import annotations

from paceline.schedules.pipeline import pipeline_order
from paceline.schedules.pipeline.actions import Action, Phase
from paceline.testing.pipeline_orders import Needed, Walk


def walked(name: str, stages: int, microbatches: int, chunks: int = 1):
    order = pipeline_order(name, stages, microbatches, chunks)
    visited = []
    walk = Walk(order, chunks)
    walk.to_the_end(lambda rank, number, action, needed: visited.append((rank, number, action, needed)))
    return order, walk, visited


def test_every_action_is_visited_once_and_in_each_ranks_order():
    order, walk, visited = walked("interleaved", 3, 6, 2)
    assert walk.reached == [len(actions) for actions in order]
    for rank, actions in enumerate(order):
        assert [action for r, _, action, _ in visited if r == rank] == list(actions)


def test_every_message_that_is_needed_was_made_before():
    _, walk, visited = walked("zb-h2", 4, 9)
    made = set()
    for rank, _, action, needed in visited:
        assert needed is None or needed in made
        made.add(walk.message(rank, action))


def test_the_first_segment_needs_no_inputs_and_the_last_no_gradients():
    _, walk, _ = walked("1f1b", 3, 1)
    assert walk.needed(0, Action(Phase.FORWARD, 0)) is None
    assert walk.needed(2, Action(Phase.BACKWARD, 0)) is None
    assert walk.needed(1, Action(Phase.FORWARD, 0)) == Needed(True, 0, 0)
    assert walk.needed(1, Action(Phase.BACKWARD, 0)) == Needed(False, 0, 2)


def test_the_weights_part_makes_and_needs_no_message():
    _, walk, _ = walked("zb-h1", 2, 2)
    assert walk.needed(0, Action(Phase.WEIGHTS, 1)) is None
    assert walk.message(0, Action(Phase.WEIGHTS, 1)) is None
