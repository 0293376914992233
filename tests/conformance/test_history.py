"""What the history of every run says, whatever the strategy and the world."""

import dataclasses
import itertools
import math
from functools import cache

import pytest
from conformance.cases import SPECS, SYNCHRONOUS, make_task, single
from tasks import WORLDS, samples, simulated

import paceline as pl
from paceline.trace import Kind

STEPS = 7  # of 7, 7, 7 and 3 samples an epoch
SAMPLES = [7, 14, 21, 24, 31, 38, 45]


def runs(specs):
    """Parameters of `run`. One process of pytest does all tests of a run, and so trains once."""
    return [
        pytest.param((spec, world), id=f"{spec}-{world}", marks=_marks(spec, world, number % 2 == 1))
        for number, spec in enumerate(specs)
        for world in WORLDS
    ]


def _marks(spec, world, is_odd):
    """Every other strategy in processes: the rest is left to `make test-all`."""
    slow = [pytest.mark.slow] if world == "local" and is_odd else []
    return [pytest.mark.xdist_group(f"{spec} {world}"), *slow]


@pytest.fixture(params=runs(SPECS))
def run(request):
    return trained(*request.param)


@cache
def trained(spec, world):
    return pl.train(make_task("batch-not-divisible"), spec, WORLDS[world](3), steps=STEPS)


def test_steps_count_up_from_one(run):
    assert [record.step for record in run.history] == list(range(1, STEPS + 1))
    assert run.steps == STEPS


def test_seconds_never_decrease(run):
    seconds = [record.seconds for record in run.history]
    assert all(0 < a <= b for a, b in itertools.pairwise(seconds))
    assert run.seconds == seconds[-1]


def test_samples_and_bytes_never_decrease(run):
    for name in ("samples", "bytes"):
        counts = [record[name] for record in run.history]
        assert counts == sorted(counts)
    assert run.history[0].samples > 0
    assert run.history[-1].bytes <= sum(run.bytes_sent)


def test_a_metric_is_absent_where_the_task_has_none(run):
    assert run.metric is None
    assert all(record.metric is None for record in run.history)


def test_every_update_has_its_gradients_in_the_trace(run):
    computed = [
        span for spans in run.trace.spans if spans.role != "server" for span in spans.of(Kind.COMPUTE)
    ]
    assert len(computed) >= STEPS
    assert sum(len(spans.of(Kind.UPDATE)) for spans in run.trace.spans) >= STEPS


@pytest.mark.parametrize("run", runs(SYNCHRONOUS), indirect=True)
def test_a_synchronous_strategy_counts_every_sample_of_every_batch_once(run):
    assert [record.samples for record in run.history] == SAMPLES


@pytest.mark.parametrize("run", runs(SYNCHRONOUS), indirect=True)
def test_the_loss_of_a_step_is_the_loss_of_the_same_step_of_single(run):
    expected = [record.loss for record in single("batch-not-divisible").history]
    assert [record.loss for record in run.history[: len(expected)]] == pytest.approx(expected, rel=1e-12)


# Fewer samples than workers: some slices are empty

FEW = 2
IN_STEP = ["map-reduce", "all-reduce", "sync:servers=2", "central-storage", "sync"]
AT_THEIR_OWN_PACE = ["k-batch-sync", "k-async:k=2", "k-batch-async:k=3", "ssp", "k-sync:k=3", "async"]


def in_both_worlds(specs):
    """All in simulation, and the last two in processes too: the server's arithmetic is the same in both."""
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
