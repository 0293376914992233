"""K-batch-synchronous SGD: an update uses the first K mini-batches. A fast worker may compute several of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused
from strategies.server_cases import EXPONENTIAL, Ledger, count_spans, free, lengths_s, spans_of, timed
from tasks import a_task

import paceline as pl
from paceline.trace import Kind

STEPS = 20


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 5), k=st.integers(1, 10))
def test_every_update_cancels_all_but_the_worker_that_gave_the_last_gradient(seed, workers, k):
    run = timed(f"k-batch-sync:k={k}", workers, EXPONENTIAL, steps=STEPS, seed=seed)
    cancelled = np.concatenate(spans_of(run, Kind.CANCELLED))
    at = cancelled["end_s"][lengths_s(cancelled) > 0]
    assert [(at == record.seconds).sum() for record in run.history] == [workers - 1] * STEPS
    assert count_spans(run, Kind.COMPUTE) == STEPS * k


def test_a_fast_worker_gives_several_mini_batches_to_an_update():
    cluster = free(2, pl.times.Constant(1.0), slow={1: 2.5})
    ledger = Ledger("k-batch-sync:k=3", cluster, k=3, steps=STEPS)
    assert ledger.applied.sum(axis=0).tolist() == [2 * STEPS, STEPS]
    assert ledger.run.seconds == pytest.approx(2.5 * STEPS)
    assert set(ledger.run.staleness) == {0}


@pytest.mark.parametrize(("k", "seconds"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_equal_times_take_as_many_rounds_as_k_mini_batches_need(k, seconds):
    ledger = Ledger(f"k-batch-sync:k={k}", free(3, pl.times.Constant(1.0)), k=k, steps=STEPS)
    assert ledger.run.seconds == pytest.approx(seconds * STEPS)
    assert ledger.applied.sum() == k * STEPS


@pytest.mark.parametrize("k", [0, -3])
@pytest.mark.parametrize("name", ["k-batch-sync", "k-batch-async"])
def test_k_must_be_at_least_one(name, k):
    with refused("k", k, bound=has(1)):
        pl.train(a_task(), f"{name}:k={k}", free(2), steps=1)


@pytest.mark.parametrize("name", ["k-batch-sync", "k-batch-async"])
def test_mini_batches_may_be_more_than_workers(name):
    assert pl.train(a_task(), f"{name}:k=5", free(2), steps=3).steps == 3


def test_workers_that_are_quicker_than_the_link_do_not_flood_it():
    """Without receipts, the gradients on their way would become five times as many with each update."""
    link = pl.Link(bandwidth="1Mbps", latency="1ms")
    cluster = pl.Simulated(workers=5, compute=pl.times.Constant(1e-6), link=link, math="none")
    run = pl.train(a_task(), "k-batch-sync:k=6", cluster, steps=STEPS)
    pushed = count_spans(run, Kind.COMPUTE)
    assert 6 * STEPS <= pushed <= 16 * STEPS
