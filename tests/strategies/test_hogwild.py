"""Hogwild: shared parameters, no locks, every update counted."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
from refusals import has, refused
from tasks import WORLDS, a_task, numbers, samples, simulated
from torch import nn

import paceline as pl
from paceline.strategies import hogwild
from paceline.trace import Kind

EXAMPLE = Path(__file__).parents[2] / "examples" / "sparse_logistic_regression.py"


def regression(**changes):
    """Least squares without noise: the optimum of every mini-batch is one and the same point."""
    x, w = numbers(64, 4), numbers(4, 1, seed=1)
    return a_task(
        **{
            "model": lambda: nn.Linear(4, 1, bias=False).double(),
            "data": (x, x @ w),
            "batch_size": 16,
            "optimizer": lambda params: torch.optim.SGD(params, lr=0.05),
        }
        | changes
    )


def negative_loss(output, target):
    return -float((output - target).square().mean())


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_finds_the_optimum_of_a_convex_task(workers):
    run = pl.train(regression(), "hogwild", simulated(workers), steps=600)
    torch.testing.assert_close(run.parameters, numbers(4, 1, seed=1).flatten(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("workers", [2, 3])
def test_comes_near_the_optimum_of_a_convex_task_in_processes(workers):
    run = pl.train(regression(), "hogwild", pl.Local(workers=workers), steps=600)
    # A busy machine may hold up a worker's last gradient for most of the run: it then throws back by its one step.
    distance = (run.parameters - numbers(4, 1, seed=1).flatten()).norm()
    assert distance < 0.2 * numbers(4, 1, seed=1).norm()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("optimizer", ["momentum", "schedule"])
def test_one_worker_takes_the_steps_of_single(optimizer, world):
    changes = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)}
    if optimizer == "schedule":
        changes["schedule"] = lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.7**step)
    task = a_task(**changes, test=samples(12), metric=negative_loss)
    run, single = (pl.train(task, spec, WORLDS[world](1), steps=9) for spec in ("hogwild", "single"))
    torch.testing.assert_close(run.parameters, single.parameters, rtol=0, atol=1e-12)
    for name in ("step", "loss", "metric", "samples"):
        assert [r[name] for r in run.history] == pytest.approx([r[name] for r in single.history], abs=1e-12)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("workers", "steps"), [(2, 1), (3, 2), (4, 7), (4, 50)])
def test_makes_exactly_the_updates_it_was_asked_for_and_knows_the_staleness_of_each(workers, steps, world):
    run = pl.train(a_task(), "hogwild", WORLDS[world](workers), steps=steps)
    assert [record.step for record in run.history] == list(range(1, steps + 1))
    assert sum(run.staleness.values()) == steps
    assert sum(len(spans.of(Kind.UPDATE)) for spans in run.trace.spans) == steps
    assert sum(run.messages_sent) == 0


def test_an_update_that_two_workers_gave_up_to_each_other_is_made_after_all(monkeypatch):
    claim = hogwild._Tally.claim

    def meet_at_the_end(tally):
        version = claim(tally)
        return version if version < 9 else version + 2

    monkeypatch.setattr(hogwild._Tally, "claim", meet_at_the_end)
    run = pl.train(a_task(), "hogwild", simulated(3), steps=10)
    assert run.steps == sum(run.staleness.values()) == 10
    assert min(run.staleness) >= 0


def test_each_update_is_a_plain_step_with_the_mean_gradient_of_one_slice():
    # The second worker never completes a gradient, so the first makes all updates, each with half of a batch.
    task = a_task(batch_size=8)
    run = pl.train(task, "hogwild", simulated(2, slow={1: 1000.0}), steps=3)
    model, (inputs, targets) = task.build_model(0), samples()
    optimizer = task.build_optimizer(model)
    order = np.random.default_rng([0, 0]).permutation(24)
    for step in range(3):
        half = order[8 * step : 8 * step + 4]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[half]), targets[half]).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
    assert [record.samples for record in run.history] == [4, 8, 12]


def test_equal_workers_see_the_updates_of_all_others_come_between():
    run = pl.train(a_task(), "hogwild", simulated(4), steps=40)
    assert run.staleness == {0: 1, 1: 1, 2: 1, 3: 37}
    assert run.seconds == pytest.approx(0.1)


def test_mean_staleness_is_one_less_than_the_workers_whatever_the_distribution():
    cluster = simulated(4, math="none", compute=pl.times.Exponential(1.0))
    run = pl.train(a_task(), "hogwild", cluster, steps=4000)
    mean = sum(value * count for value, count in run.staleness.items()) / 4000
    assert mean == pytest.approx(3, rel=0.02)
    assert run.step_seconds == pytest.approx(1 / 4, rel=0.05)


def test_a_seed_sets_the_course_of_a_simulation(tmp_path):
    cluster = simulated(3, compute=pl.times.Exponential(0.01))
    runs = [pl.train(a_task(), "hogwild", cluster, steps=30, seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].history == runs[1].history
    assert runs[0].staleness == runs[1].staleness
    assert not torch.equal(runs[0].parameters, runs[2].parameters)


def test_the_schedule_goes_by_the_updates_of_all():
    def rates(optimizer):
        # The learning rate is zero from the 20th update on.
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < 20))

    short, long = (
        pl.train(a_task(schedule=rates), "hogwild", simulated(4), steps=steps) for steps in (24, 60)
    )
    assert torch.equal(short.parameters, long.parameters)


@pytest.mark.parametrize("world", WORLDS)
def test_evaluates_about_as_often_as_asked_and_the_final_model_at_the_end(world):
    task = regression(test=samples_of_regression(), metric=negative_loss)
    run = pl.train(task, "hogwild", WORLDS[world](3), steps=90, evaluate_every=30)
    evaluated = [record.metric for record in run.history if record.metric is not None]
    assert 1 <= len(evaluated) <= 3
    if world == "simulated":
        assert [r.step // 30 for r in run.history if r.metric is not None] == [1, 2, 3]
    inputs, targets = samples_of_regression()
    assert run.history[-1].metric == pytest.approx(negative_loss(run.model(inputs).detach(), targets))


def samples_of_regression():
    x = numbers(32, 4, seed=5)
    return x, x @ numbers(4, 1, seed=1)


@pytest.mark.parametrize("world", WORLDS)
def test_stops_soon_after_the_target(world):
    task = regression(test=samples_of_regression(), metric=negative_loss, target=-0.1)
    run = pl.train(task, "hogwild", WORLDS[world](2), steps=50_000, evaluate_every=10, stop_at_target=True)
    assert run.reached_target
    assert run.steps < 50_000
    assert sum(run.staleness.values()) == run.steps == len(run.history)


@pytest.mark.parametrize("world", WORLDS)
def test_seconds_and_samples_only_grow(world):
    run = pl.train(a_task(batch_size=7), "hogwild", WORLDS[world](3), steps=25)
    for name in ("seconds", "samples"):
        assert all(a <= b for a, b in itertools.pairwise(r[name] for r in run.history))
    assert run.seconds == run.history[-1].seconds


def test_a_slice_without_samples_makes_no_update():
    run = pl.train(a_task(data=samples(25)), "hogwild", simulated(4), steps=30)
    counts = np.diff([0, *(record.samples for record in run.history)])
    assert run.steps == 30
    assert counts.min() >= 1


def test_workers_on_several_hosts_are_refused():
    with refused("hosts", 2):
        pl.train(a_task(), "hogwild", simulated(4, hosts=2), steps=3)


@pytest.mark.parametrize("world", WORLDS)
def test_more_workers_than_samples_in_a_batch_are_refused(world):
    with refused("batch_size", 2, bound=has(3)):
        pl.train(a_task(batch_size=2), "hogwild", WORLDS[world](3), steps=3)


@pytest.fixture(scope="module")
def example():
    """The example as a module with functions that are pickled by value."""
    spec = importlib.util.spec_from_file_location("sparse_logistic_regression", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[spec.name]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_way_of_the_sparse_example_learns(example, workers):
    rows = example.make_rows(samples=400, features=300, nonzeros=20)
    results = [example.measure(rows, way, workers, epochs=2) for way in example.WAYS]
    assert all(result.loss < 0.6 for result in results), "at first it is 0.69"
    losses = [result.loss for result in results]
    assert max(losses) - min(losses) < (1e-12 if workers == 1 else 0.05)
    assert "hogwild" in example.table(results)


def test_the_samples_of_the_sparse_example_are_like_those_of_rcv1(example):
    rows = example.make_rows(samples=500, features=47_000)
    assert len(rows.columns) / len(rows) == pytest.approx(75, rel=0.1)
    assert np.allclose(np.add.reduceat(rows.values**2, rows.starts[:-1]), 1.0)
    assert 0.3 < (rows.labels > 0).mean() < 0.7


async def claim_until_refused(ctx):
    """Return the updates that this rank could claim in each of several races for 50 updates, and the final total."""
    gate = ctx.net.window("gate", rows=1, like=torch.zeros(1))
    granted = []
    for race in range(20):
        place = SimpleNamespace(
            rank=ctx.rank,
            workers=ctx.workers,
            model=SimpleNamespace(version=0),
            net=SimpleNamespace(window=lambda name, race=race, **k: ctx.net.window(f"{name}{race}", **k)),
        )
        tally = hogwild._Tally(place)
        await gate.barrier()
        mine = sum(1 for _ in itertools.takewhile(lambda tally: tally.claim() <= 50, itertools.repeat(tally)))
        await gate.barrier()
        granted.append((mine, tally.settle()))
    return granted


def test_processes_that_race_for_updates_are_never_granted_too_many():
    run = pl.run_program(claim_until_refused, pl.Local(workers=3))
    for race in zip(*run.results, strict=True):
        total = sum(mine for mine, _ in race)
        assert 48 <= total <= 50, "of three, two may give up to each other"
        assert {settled for _, settled in race} == {total}
