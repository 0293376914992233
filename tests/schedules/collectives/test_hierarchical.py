from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused

from paceline.schedules.collectives import hierarchical, ring
from paceline.schedules.collectives.count import count
from paceline.schedules.collectives.matching import match
from paceline.testing.schedules.validate import validate


def group(hosts: list[int]):
    return [hierarchical.schedule(rank, len(hosts), hosts) for rank in range(len(hosts))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=17))
def test_ranks_may_lie_on_hosts_in_any_way(hosts: list[int]):
    validate(group(hosts), "all-reduce")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_the_plan_moves_what_the_schedules_move(hosts: list[int]):
    planned = count(hierarchical.plan(len(hosts), hosts), 103, 4)
    assert planned == count(group(hosts), 103, 4)


@pytest.mark.parametrize(("hosts", "local"), [(2, 4), (3, 2), (4, 4)])
def test_each_byte_leaves_a_host_as_in_a_ring_of_hosts(hosts: int, local: int):
    where = [rank // local for rank in range(hosts * local)]
    length = hosts * local * 10
    leaving = [m for m in match(group(where)) if where[m.sender.rank] != where[m.receiver.rank]]
    elements = [10 * (m.sent.stop - m.sent.start) for m in leaving]
    per_host = np.bincount([where[m.sender.rank] for m in leaving], elements)
    assert per_host.tolist() == [2 * length * (hosts - 1) / hosts] * hosts


def test_interleaved_ranks_talk_inside_their_host_first():
    schedule = hierarchical.schedule(0, 4, [0, 1, 0, 1])
    assert [steps[0].to for steps in schedule.rounds] == [2, 1, 1, 2]


def test_hosts_of_unequal_numbers_talk_through_their_first_rank():
    where = [0, 0, 0, 1, 1]
    leaving = [m for m in match(group(where)) if where[m.sender.rank] != where[m.receiver.rank]]
    assert {m.sender.rank for m in leaving} == {0, 3}


def test_without_hosts_it_is_a_ring():
    assert hierarchical.schedule(2, 5) == ring.schedule(2, 5)


def test_a_list_of_hosts_of_another_length_is_refused():
    with refused("hosts", (0, 1), bound=has(3)):
        hierarchical.schedule(0, 3, [0, 1])
