from __future__ import annotations

from refusals import has, refused

from paceline.schedules.collectives import all_to_all, group_plan
from paceline.schedules.collectives.count import count


def test_in_every_round_every_rank_has_another_partner():
    rounds = list(group_plan("all-to-all", "pairwise", 6).rounds())
    assert [part.pairing.shift for part in rounds] == [1, 2, 3, 4, 5]


def test_the_length_must_be_a_multiple_of_the_number_of_ranks():
    with refused("length", 10, bound=has(3)):
        count([all_to_all.schedule(rank, 3) for rank in range(3)], 10, 4)
