"""Estimates of the time to a target."""

import dataclasses

import pytest
from refusals import refused
from small_plans import aimed, cluster

import paceline as pl
from paceline.planner.entry import Entry
from paceline.planner.estimate import Choice, Estimator
from paceline.planner.sizing import PlannedCluster
from paceline.planner.target_time import SEEDS, TargetTimes, evaluation_interval

EPOCHS = 10
STEPS = EPOCHS * 4


def estimated(*specs, where=None, task=None, epochs=EPOCHS, change=lambda entry: entry):
    """Estimate the times of these strategies. Return the entries by strategy, and the estimator."""
    given, told = task or aimed(), []
    planned = PlannedCluster.of(where or cluster(slow={3: 8.0}), calibrated=None)
    estimator = Estimator(given, planned, None)
    entries = []
    for spec in specs:
        choice = Choice(spec, 1 if spec == "single" else planned.workers, False)
        entries.append(change(Entry.of(choice, estimator.prediction(choice), estimator)))
    times = TargetTimes(given, planned, epochs, 0, told.append)
    return {entry.strategy: entry for entry in times.estimate(entries)}, times, told


def test_strategies_with_the_weights_of_single_need_its_steps():
    found, _, told = estimated("single", "all-reduce", "sync")
    batches = {entry.target.batches for entry in found.values()}
    assert len(batches) == 1
    assert all(
        entry.target.seconds == pytest.approx(entry.target.batches * entry.batch_seconds)
        for entry in found.values()
    )
    assert len(told) == SEEDS  # only single was trained


def test_the_estimate_of_a_synchronous_strategy_is_that_of_a_simulation():
    found, _, _ = estimated("all-reduce")
    target = found["all-reduce"].target
    seconds = [
        pl.train(
            aimed(),
            "all-reduce",
            cluster(slow={3: 8.0}),
            steps=STEPS,
            seed=seed,
            stop_at_target=True,
            evaluate_every=evaluation_interval(STEPS),
        ).seconds_to_target
        for seed in range(SEEDS)
    ]
    assert target.seconds == pytest.approx(sum(seconds) / SEEDS, rel=0.02)
    assert (target.low, target.high) == pytest.approx((min(seconds), max(seconds)), rel=0.02)
    assert target.first == pytest.approx(seconds[0], rel=0.02)


def test_other_strategies_are_simulated_with_every_seed():
    found, _, told = estimated("all-reduce", "k-sync:k=2")
    target = found["k-sync:k=2"].target
    assert target.seeds == SEEDS
    assert target.low <= target.seconds <= target.high
    assert target.first in (target.low, target.high)
    assert target.spread == pytest.approx((target.high - target.low) / 2 / target.seconds)
    assert sum("k-sync" in name for name in told) == SEEDS  # each seed once


def test_only_strategies_with_faster_batches_are_simulated():
    found, times, _ = estimated("all-reduce", "local-sgd:period=2", where=cluster())
    slower = {"local-sgd:period=2"} if found["local-sgd:period=2"].target is None else set()
    assert times.skipped == len(slower)


def test_a_simulation_that_takes_twice_the_best_time_is_given_up():
    def slow_to_learn(entry):
        """Claim that a batch is fast, but that its updates take long: the simulation may then have few of them."""
        if entry.strategy != "k-sync:k=2":
            return entry
        return dataclasses.replace(
            entry, prediction=dataclasses.replace(entry.prediction, step_seconds=1e3), batch_seconds=1e-6
        )

    found, times, _ = estimated("all-reduce", "k-sync:k=2", change=slow_to_learn)
    assert found["k-sync:k=2"].target is None
    assert [each.partition(" ")[0] for each in times.missed] == ["k-sync:k=2"]


def test_if_single_misses_the_target_its_equals_have_no_time():
    hard = dataclasses.replace(aimed(), target=1.01)
    found, times, _ = estimated("single", "all-reduce", task=hard, epochs=1)
    assert all(entry.target is None for entry in found.values())
    assert len(times.missed) == 1


def test_a_plan_without_a_strategy_that_reaches_the_target_has_no_best():
    hard = dataclasses.replace(aimed(), target=1.01)
    found = pl.plan(hard, cluster(2), strategies=["single", "k-sync"], epochs=1)
    with refused("target"):
        _ = found.best
