"""What the history of every run says, whatever the strategy and the world."""

import itertools
from functools import cache

import pytest
from conformance.cases import SPECS, SYNCHRONOUS, make_task, single
from tasks import WORLDS

import paceline as pl
from paceline.trace import Kind

STEPS = 7  # of 7, 7, 7 and 3 samples an epoch
SAMPLES = [7, 14, 21, 24, 31, 38, 45]


def runs(specs):
    """Parameters of `run`. One process of pytest does all tests of a run, and so trains once."""
    return [
        pytest.param((spec, world), id=f"{spec}-{world}", marks=pytest.mark.xdist_group(f"{spec} {world}"))
        for spec, world in itertools.product(specs, WORLDS)
    ]


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
