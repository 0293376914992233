"""Goodput of a simulated run with random failures."""

import pytest
from refusals import has
from tasks import a_task

import paceline as pl
from paceline.analysis.goodput import goodput_of
from paceline.faults import Random

STEPS = 20


def found(strategy="all-reduce", *, mean="50ms", **changes):
    machines = {"workers": 4, "compute": pl.times.Constant("10ms"), "faults": [Random(mean)]} | changes
    return goodput_of(a_task(), strategy, pl.Simulated(**machines), steps=STEPS)


def test_lost_workers_that_are_started_again_cost_less_time():
    goodput = found()
    assert goodput.min_workers == 1
    assert goodput.with_restart.lost == 4
    assert 0 < goodput.with_restart.goodput < 1
    assert goodput.without_restart.goodput == 0, "all workers are lost"
    assert has("min_workers=1") == goodput.without_restart.refusal


def test_a_run_without_a_failure_has_a_goodput_of_one():
    goodput = found(mean="10min", min_workers=2)
    for survival in (goodput.without_restart, goodput.with_restart):
        assert survival.goodput == pytest.approx(1)
        assert survival.lost == 0
    assert goodput.min_workers == 2


def test_the_best_interval_is_near_that_of_young_and_daly():
    goodput = found(mean="10min")
    assert goodput.interval_s == pytest.approx(goodput.daly_s, rel=0.5)
    assert 0 < goodput.resumed < 1


def test_a_strategy_that_cannot_lose_workers_says_so():
    assert found("tensor:size=4").with_restart.refusal
    assert all(line for line in found("tensor:size=4").lines().values())
