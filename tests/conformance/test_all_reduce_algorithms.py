"""`all-reduce` gives the weights of `single` with every algorithm, and with gradients in one bucket or in many."""

import pytest
import torch
from conformance.cases import STEPS, in_turn, make_task, one_in, single
from refusals import refused
from tasks import simulated

import paceline as pl
from paceline.collectives import ALGORITHMS

SCHEDULES = [name for name in ALGORITHMS if name not in ("auto", "native")]


def assert_equals_single(run):
    expected = single("batch-not-divisible", "momentum").parameters
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def train(spec, cluster):
    return pl.train(make_task("batch-not-divisible", "momentum"), spec, cluster, steps=STEPS)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_every_algorithm_gives_the_weights_of_single_in_simulation(algorithm, workers):
    assert_equals_single(train(f"all-reduce:algorithm={algorithm}", simulated(workers)))


@pytest.mark.parametrize("workers", [3, 4])
def test_native_gives_the_weights_of_single_in_processes(workers):
    assert_equals_single(train("all-reduce:algorithm=native", pl.Local(workers=workers)))


# `make test` tests every algorithm, on three or on four workers.
IN_PROCESSES = [
    (algorithm, workers) for algorithm, few in in_turn(zip(SCHEDULES), [3, 4]) for workers in (few, 7 - few)
]


@pytest.mark.parametrize(("algorithm", "workers"), one_in(2, IN_PROCESSES))
def test_every_algorithm_gives_the_weights_of_single_and_the_same_bits_in_both_worlds(algorithm, workers):
    spec = f"all-reduce:algorithm={algorithm}"
    local, virtual = train(spec, pl.Local(workers=workers, threads=1)), train(spec, simulated(workers))
    assert torch.equal(local.parameters, virtual.parameters)
    assert_equals_single(local)
    if algorithm != "shared":  # windows are no messages
        assert local.messages_sent == virtual.messages_sent
        assert local.bytes_sent == virtual.bytes_sent


@pytest.mark.parametrize(
    "world", [lambda: pl.Local(workers=3), lambda: simulated(3)], ids=["local", "simulated"]
)
def test_buckets_that_are_summed_while_backward_goes_on_change_nothing(world):
    whole = train("all-reduce:algorithm=ring", world())
    pieces = train("all-reduce:algorithm=ring,bucket_mb=0.0001", world())
    assert sum(pieces.messages_sent) > sum(whole.messages_sent)
    assert_equals_single(pieces)


def test_hosts_make_auto_hierarchical():
    run = train("all-reduce", simulated(4, hosts=2))
    assert_equals_single(run)
    assert run.bytes_sent == train("all-reduce:algorithm=hierarchical", simulated(4, hosts=2)).bytes_sent


def test_native_is_refused_in_a_simulation():
    with refused("algorithm", "native"):
        train("all-reduce:algorithm=native", simulated(2))
