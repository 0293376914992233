"""BatchNorm: each worker normalises by its own slice, as in DDP, and the first worker's statistics are kept."""

import itertools
from dataclasses import replace

import pytest
import torch
from conformance.cases import LINEAR, OPTIMIZERS, STEPS, SYNCHRONOUS, WORKERS, in_turn, one_in, train_plainly
from tasks import WORLDS, samples
from torch import nn

import paceline as pl
from paceline.trace import Kind


def normalised():
    return nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
    ).double()


def task_with_batch_norm():
    # Steps of 11, 11 and 8 samples: uneven slices, but none of a single sample, which BatchNorm refuses.
    return pl.Task(
        model=normalised,
        data=samples(30),
        loss=nn.functional.mse_loss,
        optimizer=OPTIMIZERS["momentum"],
        batch_size=11,
    )


SPECS = ["single", *SYNCHRONOUS, *LINEAR]
IN_SIMULATION = itertools.product(SPECS, WORKERS, ["simulated"])
IN_PROCESSES = [
    (spec, workers, "local") for spec, few in in_turn(zip(SPECS), [1, 2]) for workers in (few, few + 2)
]


@pytest.mark.parametrize(("spec", "workers", "world"), one_in(3, [*IN_SIMULATION, *IN_PROCESSES]))
def test_weights_and_statistics_are_those_of_a_loop_over_the_slices(spec, workers, world):
    task = task_with_batch_norm()
    slices = 1 if spec == "single" else workers
    weights, statistics = train_plainly(task, workers=slices)
    run = pl.train(task, spec, WORLDS[world](workers), steps=STEPS)
    torch.testing.assert_close(run.parameters, weights, rtol=0, atol=1e-12)
    for name, expected in statistics.items():
        torch.testing.assert_close(run.state[name], expected, rtol=0, atol=1e-12)
    assert run.state["1.num_batches_tracked"] == STEPS


def test_slices_make_a_difference_to_batch_norm():
    whole, in_slices = (train_plainly(task_with_batch_norm(), workers=n) for n in (1, 3))
    assert not torch.allclose(whole[0], in_slices[0], atol=1e-6)
    assert not torch.allclose(whole[1]["1.running_mean"], in_slices[1]["1.running_mean"], atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_a_cancelled_batch_leaves_no_trace_in_the_statistics(world):
    # The first worker is now the quickest, now so slow that it is cancelled.
    late = {0: pl.times.Trace([0.0, 30.0]), 1: pl.times.Constant(0.1), 2: pl.times.Constant(0.1)}
    cluster = replace(WORLDS[world](3), delay=late)
    run = pl.train(task_with_batch_norm(), "k-sync:k=2", cluster, steps=6)
    cancelled = len(run.trace.spans[0].of(Kind.CANCELLED))
    assert 0 < cancelled < 6
    assert run.state["1.num_batches_tracked"] == 6 - cancelled
