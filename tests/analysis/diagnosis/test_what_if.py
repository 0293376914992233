"""The expected result is known: the same simulation without the slow rank."""

import pytest
from tasks import a_task, simulated
from traces import compute, ranks, wait

import paceline as pl
from paceline.analysis.diagnosis import what_if as module
from paceline.analysis.diagnosis.what_if import step_ratio

LINK = pl.Link("1Gbps", "50us")
SLOW_LINK = pl.Link("1Mbps", "1ms")

SYNCHRONOUS = [
    "map-reduce",
    "all-reduce:algorithm=ring",
    "all-reduce:algorithm=shared",
    "all-reduce:algorithm=tree",
    "all-reduce:algorithm=halving-doubling",
    "sync",
    "sync:servers=2",
]
AT_THEIR_OWN_PACE = ["async", "k-async:k=2", "k-batch-async:k=2", "hogwild"]


def foretold_and_true(strategy, *, steps, **cluster):
    """Return the seconds per step without the slowness of rank 3, from a replay of a slow run and from a run
    without it."""
    common = {"math": "none", "link": LINK} | cluster
    slow = pl.train(a_task(), strategy, simulated(4, slow={3: 4.0}, **common), steps=steps)
    true = pl.train(a_task(), strategy, simulated(4, **common), steps=steps)
    return slow.step_seconds * step_ratio(slow.trace.spans, 3, 1 / 4), true.step_seconds


@pytest.mark.parametrize("link", [LINK, SLOW_LINK], ids=["quick", "slow"])
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_a_step_of_a_synchronous_strategy_is_foretold_within_a_hundredth(strategy, link):
    foretold_s, true_s = foretold_and_true(strategy, steps=60, link=link)
    assert foretold_s == pytest.approx(true_s, rel=0.01)


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_random_times_are_foretold_as_well(strategy):
    """The draws of the rank are scaled, so the step still takes the time of the slowest of four."""
    foretold_s, true_s = foretold_and_true(strategy, steps=200, compute=pl.times.Exponential(mean=0.01))
    assert foretold_s == pytest.approx(true_s, rel=0.01)


@pytest.mark.parametrize(
    "compute", [pl.times.Constant(0.01), pl.times.Exponential(mean=0.01)], ids=["constant", "exp"]
)
@pytest.mark.parametrize("strategy", AT_THEIR_OWN_PACE)
def test_workers_at_their_own_pace_are_foretold_by_their_rates(strategy, compute):
    foretold_s, true_s = foretold_and_true(strategy, steps=600, compute=compute)
    assert foretold_s == pytest.approx(true_s, rel=0.05)


def test_a_bound_on_staleness_is_foretold():
    """The others wait for the slow rank, because the server delays its answers."""
    foretold_s, true_s = foretold_and_true("ssp:staleness=2", steps=400)
    assert foretold_s == pytest.approx(true_s, rel=0.02)


def test_gradients_that_travel_while_others_are_computed_are_foretold():
    foretold_s, true_s = foretold_and_true(
        "all-reduce:algorithm=ring,bucket_mb=0.0001", steps=60, link=SLOW_LINK
    )
    assert foretold_s == pytest.approx(true_s, rel=0.05)


def test_without_a_change_a_replay_takes_as_long_as_the_run():
    run = pl.train(a_task(), "sync", simulated(4, math="none", slow={3: 4.0}), steps=20)
    assert step_ratio(run.trace.spans, 3, 1.0) == pytest.approx(1.0, rel=1e-12)


def test_evaluation_is_not_part_of_a_step():
    """Rank 0 evaluates for a second in every second step. Without the slow rank a step still takes 1 s."""
    steps = 10
    evaluating, slow, start_s = [], [], 0.0
    for step in range(steps):
        evaluating += [
            compute(start_s, start_s + 1),
            wait(start_s + 1, start_s + 4, 1, message=-2 - 2 * step),
        ]
        slow += [compute(start_s, start_s + 4)]
        start_s += 4
        if step % 2:
            evaluating.append((6, start_s, start_s + 1, -1, 0, step, -1))
            slow.append(wait(start_s, start_s + 1, 0, message=-3 - 2 * step))
            start_s += 1
    assert step_ratio(ranks(evaluating, slow), 1, 1 / 4) == pytest.approx(1 / 4, rel=1e-9)


def test_the_beginning_of_a_long_run_stands_for_all_of_it(monkeypatch):
    run = pl.train(a_task(), "sync", simulated(4, math="none", slow={3: 4.0}), steps=100)
    whole = step_ratio(run.trace.spans, 3, 1 / 4)
    monkeypatch.setattr(module, "_MOST_SPANS", 400)
    assert step_ratio(run.trace.spans, 3, 1 / 4) == pytest.approx(whole, rel=0.02)


def test_a_trace_with_one_computation_of_each_rank_does_not_tell():
    assert step_ratio(ranks([compute(0, 1), wait(1, 4, 1, message=-2)], [compute(0, 4)]), 1, 1 / 4) is None
