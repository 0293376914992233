"""Groups of ranks are identified by their members, and have the same number on every rank."""

import itertools

import pytest
from refusals import has, refused

from paceline.clusters.rank.groups import GroupNumbers, Groups

HOSTS = (0, 0, 1, 1)


def groups_of(*ranks, numbers=None):
    number_of = (numbers or GroupNumbers()).number_of
    return [Groups(rank, HOSTS, number_of) for rank in ranks]


def test_ranks_agree_on_a_groups_number_whoever_asks_first():
    first, second = groups_of(1, 2, numbers=GroupNumbers())
    assert first.find((0, 1)).number == 1
    assert first.find((1, 2)).number == second.find([1, 2]).number == 2
    assert second.find((2, 3)).number == 3


def test_all_groups_of_six_ranks_have_numbers_of_their_own():
    numbers = GroupNumbers()
    groups = [group for size in range(1, 7) for group in itertools.permutations(range(6), size)]
    assert len({numbers.number_of(group) for group in groups}) == len(groups)
    assert [numbers.number_of(group) for group in groups] == list(range(1, len(groups) + 1))


def test_equal_ranks_are_the_same_group_and_another_order_is_another_group():
    (groups,) = groups_of(1)
    assert groups.find((0, 1)) is groups.find([0, 1]) is groups.find(range(2))
    assert groups.find((1, 0)).number != groups.find((0, 1)).number
    assert (groups.find((1, 0)).rank, groups.find((0, 1)).rank) == (0, 1)


def test_everybody_is_number_zero_and_nobody_is_asked():
    groups = Groups(3, HOSTS, number_of=None)
    assert groups.find((0, 1, 2, 3)) is groups.find(range(4)) is groups.everybody
    assert groups.everybody.number == 0


def test_no_tag_of_one_group_is_a_tag_of_another():
    (groups,) = groups_of(1)
    found = [groups.everybody, groups.find((0, 1)), groups.find((1, 2))]
    highest = 2**32 - 1
    tags = [group.base | tag for group in found for tag in (0, highest, group.next_collective())]
    assert len(set(tags)) == len(tags)
    assert max(tags) < 2**64


def test_a_group_counts_its_own_collectives():
    one, other = groups_of(1, 0, numbers=GroupNumbers())
    one.everybody.next_collective()
    assert one.find((0, 1)).next_collective() == other.find((0, 1)).next_collective()


@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        ((1, 1), refused("group", (1, 1))),
        ((1, 4), refused("group", 4, bound=has(0, 3))),
        ((-1, 1), refused("group", -1, bound=has(0, 3))),
        ((0, 2), refused("group", (0, 2), bound=has(1))),
    ],
)
def test_a_group_that_cannot_be_is_refused(members, refusal):
    (groups,) = groups_of(1)
    with refusal:
        groups.find(members)


def test_groups_of_another_leg_have_other_numbers_and_the_same_windows():
    number_of = GroupNumbers().number_of
    generations = [Groups(1, HOSTS, number_of, generation=generation) for generation in range(3)]
    for members in (range(4), (0, 1), (1, 2)):
        found = [groups.find(members) for groups in generations]
        assert len({group.number for group in found}) == 3
        assert len({group.place for group in found}) == 1
    assert generations[1].find((0, 1)).place != generations[1].find((1, 2)).place
