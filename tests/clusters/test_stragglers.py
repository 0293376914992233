"""Ranks that are slower than others, in both worlds."""

import numpy as np
import pytest
from tasks import a_task, numbers, simulated
from torch import nn

import paceline as pl
from paceline.trace import Kind

STEPS = 6


def compute_s(run):
    """The seconds that each worker computed."""
    spans = [each.of(Kind.COMPUTE) for each in run.trace.spans if each.role == "worker"]
    return np.array([lengths_s(each).sum() for each in spans])


def lengths_s(spans):
    return spans["end_s"] - spans["start_s"]


def a_heavy_task():
    """A gradient of a few milliseconds, so that measurements are not noise."""
    return a_task(
        model=lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2)).double(),
        data=(numbers(256, 256), numbers(256, 2, seed=1)),
        batch_size=128,
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("all-reduce:algorithm=shared", marks=pytest.mark.slow),
        "all-reduce:algorithm=ring",
        pytest.param("map-reduce", marks=pytest.mark.slow),
    ],
)
def test_a_slow_rank_computes_longer_in_processes(spec):
    # So slow that it is visible even on a busy machine, where the quick worker waits for a core.
    run = pl.train(a_heavy_task(), spec, pl.Local(workers=2, slow={1: 100.0}), steps=STEPS)
    quick, slow = compute_s(run)
    assert slow > 1.5 * quick


def test_a_delay_lengthens_the_computations_of_its_rank_in_processes():
    cluster = pl.Local(workers=2, delay={0: pl.times.Constant(0.5)})
    run = pl.train(a_task(), "all-reduce", cluster, steps=3)
    delayed_s, other_s = (lengths_s(run.trace.spans[rank].of(Kind.COMPUTE)) for rank in (0, 1))
    assert delayed_s.min() >= 0.5
    assert other_s.min() < 0.5  # a busy machine may keep it waiting for a core, but not each time


def test_a_delay_for_all_lengthens_everybodys_computations_in_processes():
    cluster = pl.Local(workers=2, delay=pl.times.Constant(0.01))
    assert (compute_s(pl.train(a_task(), "map-reduce", cluster, steps=STEPS)) >= 0.01 * STEPS).all()


def test_a_slow_rank_computes_exactly_so_many_times_as_long_in_simulation():
    run = pl.train(a_task(), "all-reduce", simulated(3, slow={1: 2.5}), steps=STEPS)
    assert compute_s(run) == pytest.approx(np.array([1, 2.5, 1]) * 0.01 * STEPS)


def test_a_delay_is_added_to_each_computation_in_simulation():
    run = pl.train(a_task(), "all-reduce", simulated(2, delay={1: pl.times.Constant(0.05)}), steps=STEPS)
    assert compute_s(run) == pytest.approx(np.array([0.01, 0.06]) * STEPS)


def test_a_slow_rank_is_slow_by_its_computation_not_by_its_delay():
    run = pl.train(
        a_task(), "all-reduce", simulated(2, slow={1: 3.0}, delay=pl.times.Constant(0.1)), steps=STEPS
    )
    assert compute_s(run) == pytest.approx(np.array([0.11, 0.13]) * STEPS)


def test_the_trace_blames_the_slow_rank():
    summary = pl.train(a_task(), "all-reduce", simulated(4, slow={2: 10.0}), steps=STEPS).trace.summary()
    assert summary.stragglers[0].rank == 2


def test_chance_delays_are_another_on_every_rank_and_the_same_for_the_same_seed():
    cluster = simulated(3, compute=pl.times.Exponential(0.1))
    first, same, other = (
        compute_s(pl.train(a_task(), "all-reduce", cluster, steps=4, seed=s)) for s in (1, 1, 2)
    )
    assert len(set(first.tolist())) == 3
    assert first.tolist() == same.tolist()
    assert first.tolist() != other.tolist()


def test_who_slept_at_a_barrier_blames_the_rank_that_came_last():
    # Longer than a busy machine delays the others.
    cluster = pl.Local(workers=4, delay={2: pl.times.Constant(0.5)})
    run = pl.train(a_task(), "all-reduce:algorithm=shared", cluster, steps=3)
    waits = np.concatenate([run.trace.spans[rank].of(Kind.WAIT) for rank in (0, 1, 3)])
    waited_s = np.bincount(waits["peer"], weights=lengths_s(waits), minlength=4)
    assert waited_s.argmax() == 2
