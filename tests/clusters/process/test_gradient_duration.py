import numpy as np
import pytest

import paceline as pl
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.process.gradient_duration import duration_of
from paceline.costs.prices import Given, Pass, Work
from paceline.costs.stragglers import Stragglers

EXPONENTIAL = pl.times.Exponential("10ms")


def a_pace(rank=1, compute=None, **stragglers):
    outcome = Outcome(rank=rank)
    return duration_of(rank, Stragglers(**stragglers), compute, np.random.default_rng(5), outcome), outcome


def test_by_itself_a_rank_waits_for_nothing():
    duration, outcome = a_pace()
    assert duration.begin(8) == 0.0
    assert duration.left_s(0.0, 2.0, 1.0) == 0.0
    assert duration.shows_buckets
    assert outcome.overruns == 0


def test_a_slow_rank_waits_in_proportion_to_its_processor_time_and_for_its_delay():
    duration, _ = a_pace(slow={1: 3.0}, delay={1: pl.times.Constant(0.5)})
    assert duration.left_s(duration.begin(8), 9.0, 1.0) == 2.5
    assert not duration.shows_buckets


def test_a_delay_of_a_model_in_pieces_is_one_of_each_micro_batch_in_each_stage():
    duration, _ = a_pace(delay={1: pl.times.Constant(0.5)})

    def left_s(work, stage_share):
        one = Pass(work=work, share=0.1, samples=2, slice_samples=8, stage_share=stage_share)
        return duration.left_s(duration.begin_pass(one), 9.0, 1.0)

    assert left_s(Work.FORWARD, 0.25) + left_s(Work.FORWARD, 0.75) == 0.5
    assert [left_s(work, 1.0) for work in (Work.BACKWARD, Work.INPUTS, Work.WEIGHTS)] == [0.0] * 3


@pytest.mark.parametrize(
    "stragglers", [{}, {"slow": {1: 0.5}}, {"slow": {1: 4.0}, "delay": pl.times.Exponential("1ms")}]
)
def test_a_drawn_pace_draws_what_a_simulated_rank_draws(stragglers):
    duration, _ = a_pace(compute=EXPONENTIAL, **stragglers)
    simulated = Given(EXPONENTIAL).of_rank(1, Stragglers(**stragglers), np.random.default_rng(5))
    drawn = [duration.begin(8) for _ in range(100)]
    assert drawn == [simulated.seconds(Work.GRADIENT, 0, 8) for _ in range(100)]


def test_who_computes_for_less_than_is_drawn_waits_for_the_rest():
    duration, outcome = a_pace(compute=pl.times.Constant(4.0), slow={1: 0.5})
    least_s = duration.begin(8)
    assert (least_s, duration.left_s(least_s, 1.5, 1.0)) == (2.0, 0.5)
    assert outcome.overruns == 0


def test_who_computes_for_longer_than_is_drawn_is_noted():
    duration, outcome = a_pace(compute=pl.times.Constant(1.0))
    assert duration.left_s(duration.begin(8), 1.5, 0.5) == -0.5
    assert duration.left_s(duration.begin(8), 1.25, 0.5) == -0.25
    assert (outcome.overruns, outcome.overrun_s) == (2, 0.75)
