from __future__ import annotations

import math

import pytest

from paceline.schedules.collectives import reduce


@pytest.mark.parametrize("root", [0, 2])
def test_a_flat_reduce_adds_to_the_roots_own_in_ascending_order_of_rank(execute, root: int):
    schedules = [reduce.flat(rank, 5, root) for rank in range(5)]
    ends = execute(schedules, [[str(rank)] for rank in range(5)], lambda own, received: f"{own}+{received}")
    assert ends[root] == ["+".join(map(str, [root, *(r for r in range(5) if r != root)]))]


@pytest.mark.parametrize("size", [2, 3, 8, 9, 100])
def test_the_root_of_a_binomial_tree_hears_from_lg_p_children(size: int):
    assert len(reduce.tree(0, size).rounds) == math.ceil(math.log2(size))
