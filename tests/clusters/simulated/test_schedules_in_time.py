"""The simulated cluster, message by message, takes the seconds that the schedule timer computes."""

import numpy as np
import pytest
import torch

import paceline as pl
from paceline.collectives import all_reduce
from paceline.schedules.collectives import ALL_REDUCE
from paceline.schedules.collectives.collective import Collective
from paceline.schedules.collectives.timing import time_schedule

LINK = pl.Link("10Gbps", "50us")


def arrivals(size, seed):
    """All ranks at the same time, or at random times."""
    return np.zeros(size) if seed is None else np.random.default_rng(seed).exponential(2e-4, size)


@pytest.mark.parametrize("seed", [None, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 12, 13, 16])
@pytest.mark.parametrize("algorithm", ALL_REDUCE)
def test_simulated_seconds_equal_the_timers(algorithm, size, seed):
    begin_s = arrivals(size, seed)

    async def program(ctx):
        await ctx.sleep(float(begin_s[ctx.rank]))
        await all_reduce(ctx, torch.empty(1000, device="meta"), algorithm)
        return ctx.now()

    simulated = pl.run_program(program, pl.Simulated(workers=size, link=LINK)).results
    hosts = (0,) * size if algorithm == "hierarchical" else None
    timing = time_schedule(
        Collective("all-reduce", algorithm, size, hosts=hosts).plan(),
        length=1000,
        itemsize=4,
        arrivals_s=begin_s,
        latency_s=LINK.latency_s,
        seconds_per_byte=LINK.seconds_per_byte,
    )
    assert simulated == pytest.approx(timing.finish_s.tolist(), rel=1e-9)
