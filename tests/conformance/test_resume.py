"""A resumed run gives the results of an uninterrupted run."""

import itertools
import shutil

import pytest
import torch
from conformance.cases import REPRODUCIBLE, SPECS, SYNCHRONOUS, UNCUT, one_in
from conformance.test_generations import FREE, a_scheduled_task
from gans import a_gan
from in_generations import course
from refusals import refused
from tasks import WORLDS, simulated

import paceline as pl
from paceline.testing.checks import check_close
from paceline.testing.tasks import batch_norm_task, make_task, odd_task, stream_task

STOP, STEPS = 4, 7


def go_on(folder, task, first, then, *, until=STOP, steps=STEPS, **options):
    """Pairs of a run that ends early and a run that resumes it. Each is given by strategy and cluster."""
    given = {"checkpoint": folder, "checkpoint_every": 2, "evaluate_every": 2, **options}
    pl.train(task, *first, steps=until, **given)
    return pl.train(task, *then, steps=steps, resume="must", **given)


def go_on_from_the_middle(folder, task, spec, cluster):
    """Return a run, and a run that was killed after step STOP and resumed."""
    given = {"steps": STEPS, "checkpoint": folder, "checkpoint_every": 2, "keep": 9}
    plain = pl.train(task, spec, cluster, **given)
    for step in range(STOP + 1, STEPS + 1):
        shutil.rmtree(folder / f"step-{step:08}", ignore_errors=True)
    return plain, pl.train(task, spec, cluster, resume="must", **given)


def check_the_same_course(resumed, plain):
    assert torch.equal(resumed.parameters, plain.parameters)
    assert all(torch.equal(resumed.state[name], plain.state[name]) for name in plain.state)
    assert course(resumed) == course(plain)


@pytest.mark.parametrize("spec", one_in(2, zip(["single", *REPRODUCIBLE])))
def test_resuming_changes_no_bit_in_simulation(spec, tmp_path, on_a_quick_disk):
    plain, resumed = go_on_from_the_middle(tmp_path, a_scheduled_task(), spec, simulated(3))
    check_the_same_course(resumed, plain)
    assert [r.seconds for r in resumed.history] == pytest.approx([r.seconds for r in plain.history], rel=1e-3)


@pytest.mark.parametrize("spec", one_in(7, zip(["single", *REPRODUCIBLE])))
def test_resuming_changes_no_bit_in_processes(spec, tmp_path):
    task, cluster = a_scheduled_task(), WORLDS["local"](2)
    plain = pl.train(task, spec, cluster, steps=STEPS, evaluate_every=2)
    check_the_same_course(go_on(tmp_path, task, (spec, cluster), (spec, cluster)), plain)


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring", "async", "fedavg"])
def test_times_that_are_drawn_go_on_as_they_would_have(spec, tmp_path, on_a_quick_disk):
    cluster = simulated(3, compute=pl.times.Exponential(0.1), delay={1: pl.times.Pareto(0.01, 1.5)})
    plain, resumed = go_on_from_the_middle(tmp_path, a_scheduled_task(), spec, cluster)
    assert [r.seconds for r in resumed.history] == pytest.approx([r.seconds for r in plain.history], rel=1e-4)


def test_resuming_changes_no_bit_over_tcp(tmp_path):
    task, spec, cluster = a_scheduled_task(), "sync:servers=2", pl.Local(workers=2, threads=1, link="tcp")
    plain = pl.train(task, spec, WORLDS["simulated"](2), steps=STEPS, evaluate_every=2)
    check_the_same_course(go_on(tmp_path, task, (spec, cluster), (spec, cluster)), plain)


@pytest.mark.parametrize("spec", one_in(5, zip(["single", *REPRODUCIBLE])))
def test_resuming_changes_no_bit_of_batch_norm(spec, tmp_path, on_a_quick_disk):
    task = batch_norm_task(of_any_batch=True)
    plain, resumed = go_on_from_the_middle(tmp_path, task, spec, simulated(3))
    check_the_same_course(resumed, plain)


@pytest.mark.parametrize("spec", one_in(5, zip(["single", *UNCUT])))
def test_resuming_changes_no_bit_where_models_take_turns(spec, tmp_path, on_a_quick_disk):
    plain, resumed = go_on_from_the_middle(tmp_path, a_gan(), spec, simulated(2))
    check_the_same_course(resumed, plain)


@pytest.mark.parametrize("spec", ["single", "all-reduce:algorithm=shared"])
def test_a_stream_is_read_again_up_to_where_it_was(spec, tmp_path, on_a_quick_disk):
    plain, resumed = go_on_from_the_middle(tmp_path, stream_task(), spec, simulated(2))
    check_the_same_course(resumed, plain)


def test_a_moving_average_goes_on(tmp_path):
    task = odd_task(torch.float64, ema=0.9)
    plain = pl.train(task, "all-reduce", simulated(2), steps=STEPS)
    resumed = go_on(tmp_path, task, ("all-reduce", simulated(2)), ("all-reduce", simulated(2)))
    assert all(torch.equal(resumed.ema_state[name], plain.ema_state[name]) for name in plain.ema_state)


@pytest.mark.parametrize(("spec", "world"), one_in(5, itertools.product(FREE, WORLDS)))
def test_an_asynchronous_run_goes_on_from_a_version_that_has_every_update(spec, world, tmp_path):
    cluster = WORLDS[world](3)
    run = go_on(
        tmp_path, make_task("batch-not-divisible"), (spec, cluster), (spec, cluster), until=6, steps=14
    )
    assert [record.step for record in run.history] == list(range(1, 15))
    assert torch.isfinite(run.parameters).all()
    seen = [record.samples for record in run.history]
    assert seen == sorted(seen)


OTHERS = [
    (first, then, workers, others)
    for first, then in zip(SYNCHRONOUS, [*SYNCHRONOUS[3:], *SYNCHRONOUS[:3]], strict=True)
    for workers, others in [(3, 3), (3, 2), (2, 4)]
    if not first.startswith("local-sgd") and not then.startswith("local-sgd")
]


@pytest.mark.parametrize(("first", "then", "workers", "others"), one_in(9, OTHERS))
def test_other_workers_and_other_synchronous_strategies_give_the_weights_of_single(
    first, then, workers, others, tmp_path
):
    for number, optimizer in enumerate(["momentum", "adam"]):
        task = make_task("param-groups", optimizer)
        expected = pl.train(task, "single", simulated(1), steps=STEPS)
        run = go_on(tmp_path / str(number), task, (first, simulated(workers)), (then, simulated(others)))
        check_close(run.parameters, expected.parameters)
        assert [record.step for record in run.history] == list(range(1, STEPS + 1))
        losses = [[record.loss for record in each.history] for each in (run, expected)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
        assert [record.samples for record in run.history] == [record.samples for record in expected.history]


@pytest.mark.parametrize("world", WORLDS)
def test_one_worker_goes_on_as_four_in_any_world(world, tmp_path):
    task = make_task("clipping", "adam")
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    run = go_on(tmp_path, task, ("single", simulated(1)), ("all-reduce", WORLDS[world](3)))
    check_close(run.parameters, expected.parameters)


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.startswith(("local-sgd", "decentralized", "hogwild"))]
)
def test_workers_that_have_a_state_of_their_own_are_not_exchanged(spec, tmp_path):
    with refused("strategy"):
        go_on(tmp_path, make_task(), (spec, simulated(3)), (spec, simulated(2)))


@pytest.mark.parametrize(("first", "then"), [("sync:servers=2", "sync:servers=3"), ("pipeline", "pipeline")])
def test_optimizer_state_that_a_rank_has_restored_but_not_used_is_not_saved_again(first, then, tmp_path):
    # Ranks without parameters of their own restore the whole state. It is out of date at the next checkpoint.
    task = make_task(optimizer="adam")
    for spec, workers, steps in ((first, 4, 3), (then, 4, 6), ("zero:stage=1", 2, 9)):
        run = pl.train(task, spec, simulated(workers), steps=steps, checkpoint=tmp_path, resume=True)
    alone = pl.train(task, "single", simulated(1), steps=9)
    torch.testing.assert_close(run.parameters, alone.parameters, rtol=0, atol=1e-12)
