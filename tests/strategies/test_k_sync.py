"""K-synchronous SGD: the first K workers make up an update, and exactly the others are cancelled."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused
from strategies.server_cases import EXPONENTIAL, Ledger, count_spans, free, lengths_s, spans_of, timed
from tasks import a_task

import paceline as pl
from paceline.trace import Kind

STEPS = 20


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 6), data=st.data())
def test_every_update_discards_exactly_the_slowest(seed, workers, data):
    k = data.draw(st.integers(1, workers), label="k")
    run = timed(f"k-sync:k={k}", workers, EXPONENTIAL, steps=STEPS, seed=seed)
    cancelled = np.concatenate(spans_of(run, Kind.CANCELLED))
    ends_s = [record.seconds for record in run.history]
    assert [(cancelled["end_s"][lengths_s(cancelled) > 0] == end_s).sum() for end_s in ends_s] == [
        workers - k
    ] * STEPS
    assert count_spans(run, Kind.COMPUTE) == STEPS * k, "what was computed to its end was used"


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 4))
def test_the_gradients_of_an_update_are_those_that_came_first(seed, k):
    ledger = Ledger(f"k-sync:k={k}", free(4), k=k, steps=STEPS, seed=seed)
    finished = spans_of(ledger.run, Kind.COMPUTE)
    assert ledger.applied.sum(axis=0).tolist() == [len(spans) for spans in finished]
    for worker, spans in enumerate(finished):
        assert np.flatnonzero(ledger.applied[:, worker]).tolist() == spans["step"].tolist()


def test_of_gradients_that_come_together_k_are_used_and_the_others_discarded():
    ledger = Ledger("k-sync:k=3", free(5, pl.times.Constant(1.0)), k=3, steps=STEPS)
    assert ledger.applied.sum() == 3 * STEPS
    assert ledger.computed.sum() == 5 * STEPS, "they were too late to be cancelled"
    assert ledger.run.seconds == pytest.approx(STEPS)


def test_a_worker_that_is_always_last_is_never_waited_for():
    run = timed("k-sync:k=3", 4, pl.times.Constant(1.0), steps=STEPS)
    held_up = pl.train(a_task(), "k-sync:k=3", free(4, pl.times.Constant(1.0), slow={1: 100.0}), steps=STEPS)
    assert held_up.seconds == run.seconds
    assert len(held_up.trace.spans[1].of(Kind.COMPUTE)) == 0
    assert (lengths_s(held_up.trace.spans[1].of(Kind.CANCELLED))[:STEPS] == 1.0).all()


def test_all_workers_make_it_the_synchronous_parameter_server():
    runs = [pl.train(a_task(), spec, free(3), steps=STEPS) for spec in ("sync", "k-sync:k=3")]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-15)
    assert runs[0].seconds == runs[1].seconds


@pytest.mark.parametrize("k", [0, -1, 5])
@pytest.mark.parametrize("name", ["k-sync", "k-async"])
def test_k_must_be_from_one_to_the_number_of_workers(name, k):
    with refused("k", k, bound=has(1, 4)):
        pl.train(a_task(), f"{name}:k={k}", free(4), steps=1)


def test_k_must_be_a_whole_number():
    with refused("k-sync:k", "1.5"):
        pl.train(a_task(), "k-sync:k=1.5", free(4), steps=1)
