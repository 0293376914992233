"""Synchronous parameter server: the weights of `single`, in any order of arrival."""

import pytest
import torch
from conformance.cases import CASES, OPTIMIZERS, STEPS, make_task, single, train_plainly
from strategies.server_cases import EXPONENTIAL, PARETO, free, spans_of
from tasks import WORLDS, a_task

import paceline as pl
from paceline.testing.tasks import batch_norm_task
from paceline.trace import Kind

WORKERS = 4
SEEDS = range(8)

ORDERS = {
    "chance": {},
    "heavy tail": {"times": pl.times.Pareto(0.1, 1.2)},
    **{f"rank {rank} last": {"slow": {rank: 50.0}} for rank in range(WORKERS)},
    "slow link": {"times": PARETO, "link": pl.Link("10kbps", "1s")},
}
"""Clusters on which the gradients of one step come in different orders."""


def order_of_arrival(run):
    """The workers, in the order in which they had sent their gradients to the first server, of all steps."""
    ends = [
        (end_s, worker)
        for worker, spans in enumerate(spans_of(run, Kind.SEND))
        for end_s in spans["end_s"][spans["peer"] == WORKERS]
    ]
    return tuple(worker for _, worker in sorted(ends))


def train(order, servers=1, optimizer="sgd", seed=0):
    cluster = free(WORKERS, **({"times": EXPONENTIAL} | ORDERS[order]))
    return pl.train(make_task("plain", optimizer), f"sync:servers={servers}", cluster, steps=STEPS, seed=seed)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_order_of_arrival_gives_the_same_bits(optimizer, servers):
    runs = [train(order, servers, optimizer) for order in ORDERS]
    assert len({order_of_arrival(run) for run in runs}) >= len(runs) - 1, "the orders do differ"
    for run in runs:
        assert torch.equal(run.parameters, runs[0].parameters)
        assert [record.loss for record in run.history] == [record.loss for record in runs[0].history]


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_that_come_in_any_order_give_the_weights_of_single(optimizer, servers):
    for seed in SEEDS:
        expected = pl.train(make_task("plain", optimizer), "single", free(1), steps=STEPS, seed=seed)
        run = train("chance", servers, optimizer, seed)
        torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)
        assert [r.loss for r in run.history] == pytest.approx([r.loss for r in expected.history], abs=1e-12)


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_several_servers_give_the_weights_of_single_whatever_the_task(case, servers):
    run = pl.train(make_task(case, "momentum"), f"sync:servers={servers}", free(3), steps=STEPS)
    torch.testing.assert_close(run.parameters, single(case, "momentum").parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("servers", [1, 2])
def test_batch_norm_learns_as_in_a_loop_over_the_slices(servers, world):
    task = batch_norm_task()
    weights, statistics = train_plainly(task, workers=3)
    run = pl.train(task, f"sync:servers={servers}", WORLDS[world](3), steps=STEPS)
    torch.testing.assert_close(run.parameters, weights, rtol=0, atol=1e-12)
    for name, expected in statistics.items():
        torch.testing.assert_close(run.state[name], expected, rtol=0, atol=1e-12)


def test_an_update_takes_as_long_as_its_slowest_worker():
    run = pl.train(a_task(), "sync", free(4, pl.times.Constant(1.0), slow={2: 7.0}), steps=STEPS)
    assert run.seconds == pytest.approx(7.0 * STEPS)


def test_nothing_is_cancelled_or_stale():
    run = train("chance")
    assert not any(len(spans) for spans in spans_of(run, Kind.CANCELLED))
    assert run.staleness == {0: WORKERS * STEPS}
