"""A run with programs that end and start again gives the same results as an uninterrupted run."""

import itertools

import pytest
import torch
from conformance.cases import ASYNCHRONOUS, REPRODUCIBLE, SPECS, UNCUT, in_turn, one_in
from gans import a_gan
from in_generations import InGenerations, course
from tasks import WORLDS, samples, simulated
from torch import nn

import paceline as pl
from paceline.testing.tasks import batch_norm_task, make_task, odd_task

STEPS = 7
FREE = [spec for spec in SPECS if spec not in REPRODUCIBLE and spec != "single"]


def closeness(outputs, targets):
    return -float(((outputs - targets) ** 2).mean())


def a_scheduled_task():
    return odd_task(
        torch.float64,
        schedule=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.8),
        test=(torch.ones(4, 13, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64)),
        metric=closeness,
        clip_norm=0.5,
        ema=None,
    )


def check_the_same_course(task, spec, world, workers, every):
    plain, parted = (
        pl.train(task, spec, cluster, steps=STEPS)
        for cluster in (WORLDS[world](workers), InGenerations(WORLDS[world](workers), every))
    )
    assert torch.equal(parted.parameters, plain.parameters)
    assert all(torch.equal(parted.state[name], plain.state[name]) for name in plain.state)
    assert course(parted) == course(plain)


@pytest.mark.parametrize(("spec", "every"), one_in(3, in_turn(zip(["single", *REPRODUCIBLE]), [1, 3])))
def test_legs_change_no_bit_in_simulation(spec, every):
    check_the_same_course(a_scheduled_task(), spec, "simulated", 3, every)


@pytest.mark.parametrize("spec", one_in(5, zip(["single", *REPRODUCIBLE])))
def test_legs_change_no_bit_in_processes(spec):
    check_the_same_course(a_scheduled_task(), spec, "local", 2, 3)


@pytest.mark.parametrize("spec", one_in(5, zip(["single", *REPRODUCIBLE])))
def test_legs_change_no_bit_of_batch_norm(spec):
    check_the_same_course(batch_norm_task(of_any_batch=True), spec, "simulated", 3, 2)


@pytest.mark.parametrize("spec", one_in(5, zip(["single", *UNCUT])))
def test_legs_change_no_bit_where_models_take_turns(spec):
    check_the_same_course(a_gan(), spec, "simulated", 2, 3)


@pytest.mark.parametrize(("spec", "world"), one_in(5, itertools.product(FREE, WORLDS)))
def test_legs_lose_no_update_and_make_none_twice(spec, world):
    run = pl.train(make_task("batch-not-divisible"), spec, InGenerations(WORLDS[world](3), 4), steps=14)
    assert [record.step for record in run.history] == list(range(1, 15))
    assert torch.isfinite(run.parameters).all()
    assert [record.samples for record in run.history] == sorted(record.samples for record in run.history)


@pytest.mark.parametrize("spec", sorted(ASYNCHRONOUS))
def test_a_version_is_never_older_than_its_leg(spec):
    slow = simulated(3, compute=pl.times.Exponential(0.1))
    run = pl.train(make_task(), spec, InGenerations(slow, 1), steps=6)
    assert run.staleness.keys() <= {0}, "all workers begin a generation with its parameters"


def test_a_moving_average_goes_on_from_leg_to_leg():
    task = make_task(ema=0.9)
    plain, parted = (
        pl.train(task, "all-reduce", cluster, steps=STEPS)
        for cluster in (simulated(2), InGenerations(simulated(2), 2))
    )
    assert all(torch.equal(parted.ema_state[name], plain.ema_state[name]) for name in plain.ema_state)


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("spec", ["all-reduce", "sync", "local-sgd:period=2", "decentralized"])
def test_a_target_ends_the_run_at_the_same_step(spec, every):
    task = make_task(test=samples(4), metric=closeness, target=-100.0)
    plain, parted = (
        pl.train(task, spec, cluster, steps=20, evaluate_every=2, stop_at_target=True)
        for cluster in (simulated(2), InGenerations(simulated(2), every))
    )
    assert parted.steps == plain.steps < 20
    assert torch.equal(parted.parameters, plain.parameters)


@pytest.mark.parametrize("spec", ["hogwild", "decentralized:mode=async"])
def test_a_target_ends_a_run_of_workers_at_their_own_pace(spec):
    task = make_task(test=samples(4), metric=closeness, target=-100.0)
    for every in (2, 3):
        run = pl.train(
            task, spec, InGenerations(simulated(3), every), steps=30, evaluate_every=2, stop_at_target=True
        )
        assert run.steps < 30


@pytest.mark.parametrize("spec", ["async", "fedavg", "decentralized", "decentralized:mode=async"])
def test_a_rank_that_is_lost_in_one_leg_is_missing_in_the_next(spec):
    faults = (pl.faults.Kill(1, step=1),)
    run = pl.train(make_task(), spec, InGenerations(simulated(3, faults=faults), 4), steps=12)
    assert run.steps == 12
    assert [rank for rank, _ in run.lost] == [1]


def test_loaders_go_on_from_leg_to_leg():
    task = make_task(
        "dataset",
        loaders=1,
        model=lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 2)).double(),
    )
    cluster = pl.Local(workers=2, threads=1)
    plain, parted = (
        pl.train(task, "all-reduce", where, steps=5) for where in (cluster, InGenerations(cluster, 2))
    )
    assert torch.equal(parted.parameters, plain.parameters)
