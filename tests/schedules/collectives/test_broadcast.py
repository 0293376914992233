from __future__ import annotations

import pytest

from paceline.schedules.collectives import broadcast
from paceline.schedules.collectives.count import count


@pytest.mark.parametrize("size", [2, 3, 7, 8, 9, 33])
def test_a_binomial_broadcast_doubles_the_holders_each_round(size: int):
    schedules = [broadcast.tree(rank, size) for rank in range(size)]
    traffic = count(schedules, 100, 4)
    assert traffic.sequence == (size - 1).bit_length()
    assert sum(traffic.messages_sent) == size - 1
    assert max(traffic.messages_received) == 1


def test_a_flat_broadcast_is_one_round_so_that_latencies_overlap():
    assert [len(broadcast.flat(rank, 6).rounds) for rank in range(6)] == [1] * 6
