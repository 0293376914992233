from __future__ import annotations

import numpy as np
import pytest

from paceline.schedules.collectives import group_plan
from paceline.schedules.collectives.network import NetworkCosts, chunk_bytes, link_cost
from paceline.schedules.collectives.timing import time_schedule
from paceline.schedules.collectives.wavefront import OutOfOrder, run_wavefront


def run(name: str, size: int, arrivals: np.ndarray, **options: bool):
    plan = group_plan("all-reduce", name, size)
    network = NetworkCosts(
        chunk_bytes(160, 1, plan.chunks, plan.scratch), link_cost(1.0, "", size), link_cost(1.0, "", size)
    )
    return run_wavefront(plan, network, arrivals, np.zeros(size), np.zeros(size), **options)


@pytest.mark.parametrize("name", ["ring", "recursive-doubling", "halving-doubling", "all-to-all", "tree"])
def test_ranks_that_come_together_never_overtake(name: str):
    finish, _, _ = run(name, 16, np.zeros(16))
    assert finish.max() > 0


@pytest.mark.parametrize("name", ["recursive-doubling", "halving-doubling", "tree"])
def test_a_late_rank_is_overtaken_where_a_port_has_several_senders(name: str):
    late = np.zeros(16)
    late[1] = 1e6
    with pytest.raises(OutOfOrder):
        run(name, 16, late)
    finish, _, _ = run(name, 16, late, overtaking=False)
    assert finish.max() > 1e6


def test_a_ring_of_ten_thousand_ranks_takes_the_seconds_of_its_formula():
    size, latency, per_byte = 10_000, 5e-5, 8e-10
    timing = time_schedule(
        group_plan("all-reduce", "ring", size),
        length=25_000_000,
        itemsize=4,
        arrivals_s=np.zeros(size),
        latency_s=latency,
        seconds_per_byte=per_byte,
    )
    seconds = 2 * (size - 1) * latency + 2 * 1e8 * (size - 1) / size * per_byte
    np.testing.assert_allclose(timing.finish_s, seconds, rtol=1e-9)
