from __future__ import annotations

import pytest

from paceline.schedules.collectives.group import embed, largest_power_of_two
from paceline.schedules.collectives.steps import Accumulate, Buffer, Chunks, Copy, Recv, Reduce, Send


@pytest.mark.parametrize(("size", "core"), [(1, 1), (2, 2), (3, 2), (16, 16), (31, 16)])
def test_the_largest_power_of_two_within_a_group(size: int, core: int):
    assert largest_power_of_two(size) == core


def test_a_schedule_is_moved_to_other_ranks_and_finer_chunks():
    one, two = Chunks(0, 1), Chunks(1, 2, Buffer.SCRATCH)
    finer_one, finer_two = Chunks(10, 13), Chunks(13, 16, Buffer.SCRATCH)
    rounds = ((Send(0, one), Recv(1, two)), (Reduce(1, one),), (Copy(one, two), Accumulate(two, one)))
    assert embed(rounds, [7, 9], width=3, offset=10) == (
        (Send(7, finer_one), Recv(9, finer_two)),
        (Reduce(9, finer_one),),
        (Copy(finer_one, finer_two), Accumulate(finer_two, finer_one)),
    )
