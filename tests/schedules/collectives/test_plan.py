from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.schedules.collectives import all_gather, group_plan, reduce_scatter, ring
from paceline.schedules.collectives.plan import chunk_offsets, in_sequence, shifted_chunks, side_by_side
from paceline.schedules.collectives.steps import chunk_bounds


@given(st.integers(0, 200), st.integers(1, 20))
def test_offsets_of_one_tensor_are_the_bounds_of_its_chunks(length: int, chunks: int):
    assert chunk_offsets(length, chunks, 1).tolist() == chunk_bounds(length, chunks)


def test_offsets_of_several_tensors_go_on_where_the_last_ended():
    assert chunk_offsets(5, 2, 3).tolist() == [0, 3, 5, 8, 10, 13, 15]


def test_a_plan_can_be_read_again():
    plan = ring.plan(5)
    first, second = (np.stack([part.starts for part in plan.rounds()]) for _ in range(2))
    assert np.array_equal(first, second)


def test_rounds_between_the_same_ranks_share_their_pairing():
    assert len({id(part.pairing) for part in ring.plan(6).rounds()}) == 1


def test_a_shift_names_its_sources_and_targets():
    (part,) = shifted_chunks(4, [(3, 2)]).rounds()
    assert part.pairing.sources.tolist() == [0, 1, 2, 3]
    assert part.pairing.targets.tolist() == [3, 0, 1, 2]
    assert part.starts.tolist() == [2, 3, 0, 1]


def test_groups_side_by_side_talk_among_themselves():
    grid = np.array([[0, 2], [1, 3]])
    plan = side_by_side(reduce_scatter.plan(2), grid, width=2, offsets=np.array([0, 0]))
    (part,) = plan.rounds()
    assert plan.chunks == 4
    assert list(zip(part.pairing.sources, part.pairing.targets, strict=True)) == [
        (0, 2),
        (2, 0),
        (1, 3),
        (3, 1),
    ]
    assert part.starts.tolist() == [2, 0, 2, 0]
    assert part.stops.tolist() == [4, 2, 4, 2]


def test_plans_in_sequence_add_up():
    whole = in_sequence([reduce_scatter.plan(4), all_gather.plan(4)])
    assert (whole.depth, whole.messages) == (6, 24)


def test_ranks_are_delayed_until_both_ends_of_a_message_share_a_round():
    rounds = list(group_plan("reduce", "flat", 4).rounds())
    assert [part.pairing.sources.tolist() for part in rounds] == [[1], [2], [3]]


def test_a_plan_of_nothing_has_no_rounds():
    plan = group_plan("all-reduce", "tree", 1)
    assert (plan.depth, plan.messages, list(plan.rounds())) == (0, 0, [])
