import math

import pytest
from tasks import a_task, simulated

import paceline as pl
from paceline.clusters.rank.slow_ranks import slowest


def test_the_slowest_is_found_by_its_mean_and_held_against_the_others_median():
    assert slowest([1.0, 8.0, 2.0, 1.0], [1, 2, 2, 1]) == (1, 4.0)


def test_small_differences_are_chance():
    assert slowest([1.0, 1.2, 1.0], [1, 1, 1]) == (None, 1.0)


def test_who_has_spent_time_and_ended_nothing_is_the_slowest():
    assert slowest([1.0, 1.0, 1.0], [1, 0, 1]) == (1, math.inf)


@pytest.mark.parametrize(("computing_s", "computations"), [([], []), ([1.0], [1]), ([1.0, 0.0], [1, 0])])
def test_a_rank_alone_is_not_slow(computing_s, computations):
    assert slowest(computing_s, computations) == (None, 1.0)


@pytest.mark.parametrize("strategy", ["all-reduce", "async", "k-sync:k=3"])
def test_a_simulated_run_shows_who_is_slow(strategy, monkeypatch):
    monkeypatch.setattr("paceline.clusters.simulated.context._PROGRESS_S", 0.0)
    shown = []
    pl.train(a_task(), strategy, simulated(4, slow={2: 4.0}), steps=12, progress=shown.append)
    assert shown[-1].slow_rank == 2
    assert shown[-1].slowness > 3.99


def test_a_real_run_shows_who_is_slow():
    shown = []
    cluster = pl.Local(workers=2, delay={1: pl.times.Constant(0.03)})
    pl.train(a_task(), "all-reduce", cluster, steps=20, progress=shown.append)
    assert shown[-1].slow_rank == 1
    assert shown[-1].slowness > 1.25


def test_samples_are_those_that_a_strategy_has_seen(monkeypatch):
    monkeypatch.setattr("paceline.clusters.simulated.context._PROGRESS_S", 0.0)
    for strategy, samples in {"sync": 8 * 12, "async": 2 * 12, "hogwild": 2 * 12}.items():
        shown = []
        pl.train(a_task(), strategy, simulated(4), steps=12, progress=shown.append)
        assert shown[-1].samples == samples * shown[-1].step // 12, strategy
