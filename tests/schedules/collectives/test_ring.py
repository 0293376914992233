from __future__ import annotations

import numpy as np
import pytest

from paceline.schedules.collectives import ring
from paceline.schedules.collectives.plan import GroupPlan

SIZES = [1, 2, 3, 5, 8, 12]


def added(own, received):
    return f"({received}+{own})"


@pytest.mark.parametrize("size", SIZES)
def test_chunk_c_is_summed_from_rank_c_plus_1_round_to_rank_c(execute, size: int):
    names = [[str(rank)] * size for rank in range(size)]
    ends = execute([ring.schedule(rank, size) for rank in range(size)], names, added)
    for chunk in range(size):
        order = [str((chunk + 1 + hop) % size) for hop in range(size)]
        expected = order[0]
        for name in order[1:]:
            expected = f"({expected}+{name})"
        assert {end[chunk] for end in ends} == {expected}


def test_every_rank_sends_to_its_successor_in_every_round():
    plan = ring.plan(7)
    rounds = list(plan.rounds())
    assert len(rounds) == plan.depth == 12
    for part in rounds:
        assert part.pairing.targets.tolist() == [1, 2, 3, 4, 5, 6, 0]
        assert sorted(part.starts.tolist()) == list(range(7))


def test_the_plan_of_ten_thousand_ranks_is_made_round_by_round():
    plan: GroupPlan = ring.plan(10_000)
    assert (plan.depth, plan.messages) == (19_998, 199_980_000)
    first = next(plan.rounds())
    assert np.array_equal(first.starts, (np.arange(10_000) - 1) % 10_000)
