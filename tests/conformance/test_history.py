"""Properties of the history of every run, for any strategy and world."""

import dataclasses
import itertools
import math
from functools import cache

import pytest
from conformance.cases import SPECS, SYNCHRONOUS, make_task
from tasks import WORLDS, samples, simulated

import paceline as pl
from paceline.testing import checks

STEPS = checks.HISTORY_STEPS


def runs(specs):
    """Parameters of `run`. One process of pytest does all tests of a run, and so trains once."""
    return [
        pytest.param((spec, world), id=f"{spec}-{world}", marks=_marks(spec, world, number % 3 > 0))
        for number, spec in enumerate(specs)
        for world in WORLDS
    ]


def _marks(spec, world, is_left):
    """One strategy of three in processes. `make test-all` runs the others."""
    slow = [pytest.mark.slow] if world == "local" and is_left else []
    return [pytest.mark.xdist_group(f"{spec} {world}"), *slow]


@pytest.fixture(params=runs(SPECS))
def run(request):
    return trained(*request.param)


trained = cache(checks.train_for_history)


def test_steps_count_up_from_one(run):
    checks.check_steps_count_up(run)


def test_seconds_never_decrease(run):
    checks.check_seconds_never_decrease(run)


def test_samples_and_bytes_never_decrease(run):
    checks.check_samples_and_bytes_never_decrease(run)


def test_a_metric_is_absent_where_the_task_has_none(run):
    checks.check_no_metric(run)


def test_every_update_has_its_gradients_in_the_trace(run):
    checks.check_every_update_has_its_gradients(run)


@pytest.mark.parametrize("run", runs(SYNCHRONOUS), indirect=True)
def test_a_synchronous_strategy_counts_every_sample_of_every_batch_once(run):
    checks.check_every_sample_is_counted_once(run)


@pytest.mark.parametrize("run", runs(SYNCHRONOUS), indirect=True)
def test_the_loss_of_a_step_is_the_loss_of_the_same_step_of_single(run):
    checks.check_losses_are_those_of_single(run)


# Fewer samples than workers: some slices are empty

FEW = 2
IN_STEP = ["map-reduce", "all-reduce", "sync:servers=2", "central-storage", "sync"]
AT_THEIR_OWN_PACE = ["k-batch-sync", "k-async:k=2", "k-batch-async:k=3", "ssp", "k-sync:k=3", "async"]


def in_both_worlds(specs):
    """All variants in simulation, and the last two also in processes. The server's arithmetic is the same in both."""
    return [*itertools.product(specs, ["simulated"]), *itertools.product(specs[-2:], ["local"])]


def trained_on_few(spec, cluster):
    task = dataclasses.replace(make_task(), data=samples(FEW))
    return pl.train(task, spec, cluster, steps=STEPS)


@pytest.mark.parametrize(("spec", "world"), in_both_worlds(IN_STEP))
def test_a_worker_without_samples_leaves_no_trace_in_the_loss(spec, world):
    run = trained_on_few(spec, WORLDS[world](4))
    expected = [record.loss for record in trained_on_few("single", simulated(1)).history]
    assert [record.loss for record in run.history] == pytest.approx(expected, rel=1e-12)
    assert run.loss == run.history[-1].loss


@pytest.mark.parametrize(("spec", "world"), in_both_worlds(AT_THEIR_OWN_PACE))
def test_a_step_has_a_loss_if_and_only_if_it_has_samples(spec, world):
    run = trained_on_few(spec, WORLDS[world](4))
    counts = [record.samples for record in run.history]
    grows = [after > before for before, after in itertools.pairwise([0, *counts])]
    assert [math.isfinite(record.loss) for record in run.history] == grows
    assert math.isfinite(run.loss) == (counts[-1] > 0)


@pytest.mark.parametrize("spec", AT_THEIR_OWN_PACE)
def test_the_loss_of_a_run_is_that_of_its_last_step_with_samples(spec):
    run = trained_on_few(spec, simulated(4))
    losses = [record.loss for record in run.history if not math.isnan(record.loss)]
    assert run.loss == losses[-1]
