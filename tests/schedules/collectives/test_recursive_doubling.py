from __future__ import annotations

import pytest

from paceline.schedules.collectives import recursive_doubling
from paceline.schedules.collectives.count import count


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_with_a_power_of_two_every_rank_meets_lg_p_partners(size: int):
    traffic = count([recursive_doubling.schedule(rank, size) for rank in range(size)], 100, 4)
    assert set(traffic.messages_sent) == {size.bit_length() - 1}


@pytest.mark.parametrize(("size", "core"), [(3, 2), (5, 4), (7, 4), (12, 8), (17, 16)])
def test_ranks_above_the_power_of_two_give_first_and_get_last(size: int, core: int):
    traffic = count([recursive_doubling.schedule(rank, size) for rank in range(size)], 100, 4)
    assert traffic.messages_sent[core:] == (1,) * (size - core)
    assert traffic.sequence == core.bit_length() - 1 + 2
