"""K-asynchronous SGD: an update uses the first K distinct workers. A worker that has pushed waits for the K-th."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.server_cases import EXPONENTIAL, Ledger, count_spans, free, spans_of, timed
from tasks import a_task

import paceline as pl
from paceline.trace import Kind

STEPS = 30


@pytest.mark.parametrize(("workers", "k"), [(8, 4), (8, 2), (6, 5)])
def test_the_staleness_is_geometric_for_exponential_times(workers, k):
    histogram = timed(f"k-async:k={k}", workers, steps=16_000 // k).staleness
    gradients = sum(histogram.values())
    shares = np.array([histogram.get(staleness, 0) / gradients for staleness in range(max(histogram) + 1)])
    expected = k / workers * (1 - k / workers) ** np.arange(len(shares))
    assert np.abs(shares - expected).max() < 0.012


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 6), data=st.data())
def test_every_update_is_by_k_different_workers(seed, workers, data):
    k = data.draw(st.integers(1, workers), label="k")
    run = timed(f"k-async:k={k}", workers, EXPONENTIAL, steps=STEPS, seed=seed)
    ends_s = [record.seconds for record in run.history]
    updates = [np.searchsorted(ends_s, spans["end_s"]) for spans in spans_of(run, Kind.COMPUTE)]
    for numbers in updates:
        assert len(set(numbers.tolist())) == len(numbers), "a worker gives at most one gradient to an update"
    assert np.bincount(np.concatenate(updates), minlength=STEPS)[:STEPS].tolist() == [k] * STEPS


def test_a_worker_that_has_pushed_goes_on_when_the_update_has_happened():
    run = timed("k-async:k=3", 5, EXPONENTIAL, steps=STEPS)
    ends_s = np.array([record.seconds for record in run.history])
    for spans in spans_of(run, Kind.COMPUTE):
        pushed_s, begun_s = spans["end_s"][:-1], spans["start_s"][1:]
        assert begun_s.tolist() == ends_s[np.searchsorted(ends_s, pushed_s)].tolist()


def test_nothing_is_cancelled():
    assert count_spans(timed("k-async:k=3", 5, EXPONENTIAL, steps=STEPS), Kind.CANCELLED) == 0


def test_a_slow_worker_is_late_but_its_gradient_counts():
    cluster = free(3, pl.times.Constant(1.0), slow={2: 4.5})
    ledger = Ledger("k-async:k=2", cluster, k=2, steps=20)
    assert 3 <= ledger.applied.sum(axis=0)[2] <= 5
    assert max(ledger.run.staleness) == 4


def test_all_workers_make_it_the_synchronous_parameter_server():
    runs = [pl.train(a_task(), spec, free(3), steps=STEPS) for spec in ("sync", "k-async:k=3")]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].seconds == runs[1].seconds
