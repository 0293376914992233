"""Plans prefer fewer workers where more of them gain too little."""

import pytest
from small_plans import cluster, mlp

import paceline as pl
from paceline.planner.entry import Entry, TargetTime
from paceline.planner.prediction import Parts, Prediction
from paceline.planner.worth import UNCERTAINTY, fewest_workers_first, uncertainty


def entry(strategy, workers, batch_s, target=None):
    parts = Parts(compute=batch_s, communicate=0.0, wait=0.0, bubble=0.0, update=0.0)
    found = Prediction(step_seconds=batch_s, parts=parts, memory_bytes=1, device_bytes=None, batch_size=1)
    return Entry(
        strategy=strategy,
        workers=workers,
        recompute=False,
        prediction=found,
        batch_seconds=batch_s,
        hosts=1,
        target=target,
    )


def target(low, high):
    return TargetTime(seconds=(low + high) / 2, low=low, high=high, seeds=2, batches=10, first=low)


def first(*entries):
    return fewest_workers_first(entries, lambda each: each.seconds)[0]


def test_a_gain_within_the_uncertainty_does_not_justify_more_workers():
    single, two, four = entry("single", 1, 1.04), entry("sync", 2, 1.01), entry("all-reduce", 4, 1.0)
    assert fewest_workers_first([four, two, single], lambda each: each.seconds) == [single, four, two]


def test_a_larger_gain_does():
    assert first(entry("all-reduce", 4, 1.0), entry("single", 1, 1.06)).workers == 4


def test_of_the_fewest_workers_the_fastest_are_preferred():
    fastest, slower = entry("sync", 2, 1.01), entry("map-reduce", 2, 1.02)
    assert first(entry("all-reduce", 4, 1.0), fastest, slower) is fastest


def test_of_equal_ones_the_one_with_the_fewest_parameters_is_preferred():
    tuned, plain = entry("zero:stage=2,microbatches=8", 2, 1.0), entry("all-reduce", 2, 1.0005)
    assert first(tuned, plain) is plain
    assert first(entry("layers", 1, 1.0), entry("single", 1, 1.0005)).strategy == "single"


def test_nothing_is_preferred_if_there_is_nothing():
    assert fewest_workers_first([], lambda each: each.seconds) == []


def test_the_spread_over_seeds_counts_where_the_number_of_steps_is_estimated():
    exact = entry("all-reduce", 4, 1.0, target(8.0, 12.0))
    estimated = entry("async", 4, 1.0, target(8.0, 12.0))
    assert uncertainty(exact, exact) == UNCERTAINTY
    assert uncertainty(exact, estimated) == pytest.approx(0.2)


def test_a_plan_says_that_more_workers_would_gain_too_little():
    # A second worker halves the gradient, and the link takes almost all of what is gained.
    compute, link = pl.times.Constant("10ms"), pl.Link("1Gbps", "4.6ms")
    found = pl.plan(mlp(), pl.Simulated(2, compute=compute, link=link), strategies=["single", "all-reduce"])
    fastest = min(found.ranked, key=lambda each: each.batch_seconds)
    assert (found.best.workers, fastest.workers) == (1, 2)
    assert found.best is found.entries[0] is found.ranked[0]
    assert found.best.batch_seconds <= (1 + UNCERTAINTY) * fastest.batch_seconds
    assert str(fastest) in found.summary[1]
    assert "fewer workers" in found.summary[1]


def test_memory_and_cost_are_worth_any_gain():
    found = pl.plan(mlp(), cluster(2), "memory", strategies=["single", "sync"])
    values = [found.value(each) for each in found.ranked]
    assert values == sorted(values)
