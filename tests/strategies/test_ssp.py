"""Stale synchronous parallel: no worker begins a gradient while it is ahead of the slowest by more than the bound."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused
from strategies.server_cases import EXPONENTIAL, PARETO, SHIFTED, free, spans_of, timed
from tasks import a_task

import paceline as pl
from paceline.strategies.ssp import StaleSynchronous
from paceline.trace import Kind

BOUNDS = (0, 1, 2, 5)
STEPS = 60


def leads(run):
    """For each computation, in any order: how many gradients its worker was ahead of the slowest when it began."""
    spans = spans_of(run, Kind.COMPUTE)
    leads = []
    for each in spans:
        for clock, begun_s in enumerate(each["start_s"]):
            leads.append(clock - min((other["end_s"] <= begun_s).sum() for other in spans))
    return leads


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    bound=st.sampled_from(BOUNDS),
    workers=st.integers(1, 6),
    times=st.sampled_from([EXPONENTIAL, SHIFTED, PARETO]),
    slow=st.dictionaries(st.integers(0, 5), st.sampled_from([0.2, 4.0]), max_size=2),
    link=st.sampled_from([pl.Link.ideal(), pl.Link("1Mbps", "300ms")]),
    servers=st.integers(1, 2),
)
def test_the_bound_is_never_exceeded(seed, bound, workers, times, slow, link, servers):
    slow = {rank: factor for rank, factor in slow.items() if rank < workers}
    cluster = free(workers, times, slow=slow, link=link, math="none")
    spec = f"ssp:staleness={bound},servers={servers}"
    run = pl.train(a_task(), spec, cluster, steps=STEPS, seed=seed)
    assert max(leads(run)) <= bound


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bound_is_reached(bound):
    assert max(leads(timed(f"ssp:staleness={bound}", 4, EXPONENTIAL, steps=600))) == bound


def test_a_bound_of_zero_keeps_all_workers_in_the_same_iteration():
    run = timed("ssp:staleness=0", 5, EXPONENTIAL, steps=500)
    begun_s = np.stack([spans["start_s"][:100] for spans in spans_of(run, Kind.COMPUTE)])
    ended_s = np.stack([spans["end_s"][:100] for spans in spans_of(run, Kind.COMPUTE)])
    assert (begun_s == begun_s[0]).all()
    assert (begun_s[:, 1:] == ended_s.max(axis=0)[:-1]).all()


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("times", [pl.times.Constant(1.0), SHIFTED], ids=str)
def test_a_worker_that_is_always_slow_sets_everybodys_pace(times, bound):
    cluster = free(4, times, slow={1: 8.0}, math="none")
    run = pl.train(a_task(), f"ssp:staleness={bound}", cluster, steps=2400)
    assert run.step_seconds == pytest.approx(8.0 * times.mean_s / 4, rel=0.05)


def test_a_larger_bound_makes_less_waiting():
    seconds = [timed(f"ssp:staleness={bound}", 6, EXPONENTIAL, steps=1200).seconds for bound in (0, 1, 3, 10)]
    assert seconds == sorted(seconds, reverse=True)


def test_every_gradient_is_an_update():
    run = timed("ssp:staleness=2", 4, EXPONENTIAL, steps=STEPS)
    assert sum(run.staleness.values()) == STEPS


def test_what_is_stale_is_at_most_what_the_bound_allows():
    """While a worker computes one gradient, each other gives at most 2 s + 1 before it is too far ahead."""
    for bound in BOUNDS:
        run = timed(f"ssp:staleness={bound}", 4, PARETO, steps=600)
        assert max(run.staleness) <= 3 * (2 * bound + 1)


def test_the_same_seed_takes_the_same_course():
    first, second = (pl.train(a_task(), "ssp:staleness=1", free(3), steps=STEPS) for _ in range(2))
    assert torch.equal(first.parameters, second.parameters)


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_is_never_exceeded_in_processes(bound):
    cluster = pl.Local(workers=3, delay=pl.times.Exponential(0.002))
    assert max(leads(pl.train(a_task(), f"ssp:staleness={bound}", cluster, steps=STEPS))) <= bound


@pytest.mark.parametrize("bound", [1.5, "2", float("nan")])
def test_a_bound_that_is_no_whole_number_is_refused(bound):
    with refused("staleness"):
        pl.train(a_task(), StaleSynchronous(staleness=bound), free(2), steps=1)


@pytest.mark.parametrize("bound", [-1, -5])
def test_a_negative_bound_is_refused(bound):
    with refused("staleness", bound, bound=has(0)):
        pl.train(a_task(), f"ssp:staleness={bound}", free(2), steps=1)
