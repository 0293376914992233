"""Rounds of measurements."""

import pytest

import paceline as pl
from paceline.planner.calibrating.rounds import LEAST_ROUNDS, Rounds, usual_s


@pytest.mark.parametrize(("seconds", "usual"), [([5.0], 5.0), ([4, 3, 2, 1], 1), ([9, 1, 2, 3, 4], 2)])
def test_the_lower_quartile_of_the_rounds_counts(seconds, usual):
    assert usual_s(seconds) == usual


def test_all_ranks_do_the_same_rounds_and_at_least_three():
    async def program(ctx):
        return [number async for number in Rounds(ctx, limit_s=0.0)]

    results = pl.run_program(program, pl.Simulated(workers=3, compute=pl.times.Constant(1))).results
    assert results == [list(range(LEAST_ROUNDS))] * 3


def test_no_round_begins_after_the_time_limit():
    async def program(ctx):
        count = 0
        async for _ in Rounds(ctx, limit_s=10.0):
            await ctx.sleep(2.5)
            count += 1
        return count

    results = pl.run_program(
        program, pl.Simulated(workers=2, link=pl.Link.ideal(), compute=pl.times.Constant(1))
    )
    assert results.results == [5, 5]


def test_rounds_that_take_long_are_not_repeated_three_times():
    async def program(ctx):
        count = 0
        async for _ in Rounds(ctx, limit_s=1.0):
            await ctx.sleep(60.0)
            count += 1
        return count

    cluster = pl.Simulated(workers=2, link=pl.Link.ideal(), compute=pl.times.Constant(1))
    assert pl.run_program(program, cluster).results == [1, 1]
