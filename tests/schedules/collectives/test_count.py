"""The published formulas (Thakur, Rabenseifner, Gropp 2005; Patarasuk and Yuan 2009), counted from the
schedules.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused

from paceline.schedules.collectives import ALL_REDUCE, COLLECTIVES, group_plan
from paceline.schedules.collectives.count import count

POWERS = [2, 4, 8, 16]
ANY = [2, 3, 4, 5, 6, 7, 8, 12, 16]
ITEMSIZE = 4


def lg(size: int) -> int:
    return (size - 1).bit_length()


def traffic_of(name: str, size: int, length: int):
    return count([ALL_REDUCE[name](rank, size) for rank in range(size)], length, ITEMSIZE)


# Bytes of the busiest rank and messages in sequence, from n bytes and p ranks; exact where p divides n.
FORMULAS = {
    "reduce-broadcast": (ANY, lambda n, p: (p - 1) * n, lambda p: 2 * (p - 1)),
    "tree": (ANY, lambda n, p: lg(p) * n, lambda p: 2 * lg(p)),
    "all-to-all": (ANY, lambda n, p: (p - 1) * n, lambda p: p - 1),
    "naive-ring": (ANY, lambda n, p: min(p - 1, 2) * n, lambda p: 2 * (p - 1)),
    "ring": (ANY, lambda n, p: 2 * n * (p - 1) // p, lambda p: 2 * (p - 1)),
    "recursive-doubling": (POWERS, lambda n, p: lg(p) * n, lg),
    "halving-doubling": (POWERS, lambda n, p: 2 * n * (p - 1) // p, lambda p: 2 * lg(p)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_busiest_rank_sends_what_the_formula_says(name: str):
    sizes, busiest, _ = FORMULAS[name]
    for size in sizes:
        length = 10 * size
        assert max(traffic_of(name, size, length).bytes_sent) == busiest(length * ITEMSIZE, size)


@pytest.mark.parametrize("name", FORMULAS)
def test_as_many_messages_follow_one_another_as_the_formula_says(name: str):
    sizes, _, sequence = FORMULAS[name]
    for size in sizes:
        assert traffic_of(name, size, 10 * size).sequence == sequence(size)


@pytest.mark.parametrize(("hosts", "local"), [(2, 2), (3, 4), (4, 2)])
def test_a_rank_of_a_hierarchy_sends_its_share_inside_and_its_shard_outside(hosts: int, local: int):
    size, length = hosts * local, hosts * local * 10
    where = [rank // local for rank in range(size)]
    traffic = count(group_plan("all-reduce", "hierarchical", size, hosts=where), length, ITEMSIZE)
    n = length * ITEMSIZE
    inside, outside = 2 * n * (local - 1) // local, 2 * (n // local) * (hosts - 1) // hosts
    assert traffic.bytes_sent == (inside + outside,) * size
    assert traffic.sequence == 2 * (local - 1) + 2 * (hosts - 1)


@pytest.mark.parametrize("goal", ["all-gather", "reduce-scatter", "all-to-all"])
def test_each_rank_sends_all_but_its_own_share(goal: str):
    for size in ANY:
        (build,) = COLLECTIVES[goal].values()
        traffic = count([build(rank, size) for rank in range(size)], 10 * size, ITEMSIZE)
        assert traffic.bytes_sent == (10 * (size - 1) * ITEMSIZE,) * size
        assert traffic.sequence == size - 1


@pytest.mark.parametrize("bounds", [(0, 5, 5, 12), (0, 0, 0, 12), (0, 4, 8, 12)], ids=str)
def test_chunks_of_any_length_are_sent_as_often_as_by_a_tree_for_each(bounds):
    size, length = len(bounds) - 1, bounds[-1]
    parts = [stop - start for start, stop in pairwise(bounds)]
    for goal, rooted in (("reduce-scatter", "reduce"), ("all-gather", "broadcast")):
        schedules = [COLLECTIVES[goal]["ring"](rank, size) for rank in range(size)]
        for group in (schedules, group_plan(goal, "ring", size)):
            traffic = count(group, length, ITEMSIZE, bounds)
            trees = [
                count(group_plan(rooted, "tree", size, root=root), part, ITEMSIZE)
                for root, part in enumerate(parts)
            ]
            assert sum(traffic.bytes_sent) == sum(sum(tree.bytes_sent) for tree in trees)
            if goal == "reduce-scatter":
                assert traffic.bytes_sent == tuple(ITEMSIZE * (length - part) for part in parts)


@pytest.mark.parametrize("name", ALL_REDUCE)
@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 17), length=st.integers(0, 200))
def test_what_is_sent_is_received_and_a_plan_counts_the_same(name: str, size: int, length: int):
    traffic = traffic_of(name, size, length)
    assert sum(traffic.bytes_sent) == sum(traffic.bytes_received)
    assert sum(traffic.messages_sent) == sum(traffic.messages_received)
    assert traffic == count(group_plan("all-reduce", name, size), length, ITEMSIZE)


@given(size=st.integers(1, 12), length=st.integers(0, 200))
def test_a_ring_sends_every_element_but_the_chunks_it_does_not_pass_on(size: int, length: int):
    traffic = traffic_of("ring", size, length)
    assert sum(traffic.bytes_sent) == 2 * (size - 1) * length * ITEMSIZE


def test_an_empty_message_is_a_message():
    traffic = traffic_of("ring", 4, 0)
    assert traffic.messages_sent == (6,) * 4
    assert traffic.bytes_sent == (0,) * 4


def test_a_negative_length_is_refused():
    with refused("length", -1, bound=has(0)):
        traffic_of("ring", 4, -1)
