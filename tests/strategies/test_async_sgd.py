"""Asynchronous SGD: every gradient is an update."""

import numpy as np
import pytest
import torch
from strategies.server_cases import Ledger, free, spans_of, timed
from tasks import a_task

import paceline as pl
from paceline.trace import Kind

STEPS = 40


def test_no_worker_ever_waits():
    """Communication costs nothing here, so each computation begins when the one before it ends."""
    run = timed("async", 6, steps=600)
    for spans in spans_of(run, Kind.COMPUTE):
        assert (spans["start_s"][1:] == spans["end_s"][:-1]).all()


def test_updates_happen_when_gradients_are_ready():
    run = timed("async", 6, steps=600)
    ends_s = np.sort(np.concatenate([spans["end_s"] for spans in spans_of(run, Kind.COMPUTE)]))
    assert [record.seconds for record in run.history] == ends_s[:600].tolist()


def test_workers_give_gradients_in_proportion_to_their_speed():
    cluster = free(3, pl.times.Constant(1.0), slow={0: 2.0, 1: 4.0})
    assert Ledger("async", cluster, k=1, steps=70).applied.sum(axis=0).tolist() == [20, 10, 40]


def test_one_worker_gives_the_weights_of_single():
    alone, asynchronous = (
        pl.train(a_task(), spec, free(1), steps=STEPS).parameters for spec in ("single", "async")
    )
    torch.testing.assert_close(asynchronous, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["k-async:k=1", "k-batch-async:k=1", "ssp:staleness=1000"])
def test_other_variants_become_asynchronous_at_their_bounds(spec):
    """Weights, times and staleness are the same to the bit."""
    runs = [pl.train(a_task(), each, free(4), steps=STEPS, seed=4) for each in ("async", spec)]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].staleness == runs[1].staleness
    assert [a.seconds for a in runs[0].history] == [b.seconds for b in runs[1].history]


def test_equal_workers_take_turns():
    """After the first round each gradient has seen exactly the updates of the P - 1 others."""
    run = timed("async", 5, pl.times.Constant(1.0), steps=50)
    assert run.staleness == {0: 1, 1: 1, 2: 1, 3: 1, 4: 46}
