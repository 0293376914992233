"""K-batch-asynchronous SGD: an update uses the next K mini-batches from any workers, and no worker waits."""

import numpy as np
import pytest
from strategies.server_cases import EXPONENTIAL, Ledger, count_spans, free, spans_of, timed

import paceline as pl
from paceline.trace import Kind

UPDATES = 200


@pytest.mark.parametrize("k", [2, 5, 9])
def test_no_worker_ever_waits(k):
    for spans in spans_of(timed(f"k-batch-async:k={k}", 4, EXPONENTIAL, steps=UPDATES), Kind.COMPUTE):
        assert (spans["start_s"][1:] == spans["end_s"][:-1]).all()


@pytest.mark.parametrize("k", [2, 5, 9])
def test_every_kth_gradient_is_an_update(k):
    run = timed(f"k-batch-async:k={k}", 4, EXPONENTIAL, steps=UPDATES)
    ends_s = np.sort(np.concatenate([spans["end_s"] for spans in spans_of(run, Kind.COMPUTE)]))
    assert [record.seconds for record in run.history] == ends_s[k - 1 : k * UPDATES : k].tolist()


def test_nothing_is_cancelled():
    assert count_spans(timed("k-batch-async:k=5", 4, EXPONENTIAL, steps=UPDATES), Kind.CANCELLED) == 0


def test_a_fast_worker_gives_several_mini_batches_to_an_update():
    cluster = free(2, pl.times.Constant(1.0), slow={1: 2.5})
    ledger = Ledger("k-batch-async:k=7", cluster, k=7, steps=10)
    assert ledger.applied.sum(axis=0).tolist() == [50, 20]


def test_staleness_counts_updates_since_the_pull_not_gradients():
    """Two equal workers and updates of two gradients: the second pulls after the update, the first before it."""
    run = timed("k-batch-async:k=2", 2, pl.times.Constant(1.0), steps=10)
    assert run.staleness == {0: 11, 1: 9}
