"""BatchNorm: each worker normalises by its own slice, as in DDP, and the first worker's statistics are kept."""

import itertools
from dataclasses import replace

import pytest
import torch
from conformance.cases import LINEAR, WHOLE, WORKERS, in_turn, one_in, train_plainly
from tasks import WORLDS, simulated

import paceline as pl
from paceline.testing.checks import check_batch_norm
from paceline.testing.tasks import batch_norm_task
from paceline.trace import Kind

SPECS = ["single", *WHOLE, *LINEAR]
IN_SIMULATION = itertools.product(SPECS, WORKERS, ["simulated"])
IN_PROCESSES = [
    (spec, workers, "local") for spec, few in in_turn(zip(SPECS), [1, 2]) for workers in (few, few + 2)
]


@pytest.mark.parametrize(("spec", "workers", "world"), one_in(5, [*IN_SIMULATION, *IN_PROCESSES]))
def test_weights_and_statistics_are_those_of_a_loop_over_the_slices(spec, workers, world):
    check_batch_norm(spec, world, workers)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("spec", "parts"), [("layers", 1), ("pipeline:microbatches=3", 3)])
def test_where_the_model_is_cut_they_are_those_of_one_worker_that_takes_the_micro_batches_in_turn(
    spec, parts, workers
):
    expected = pl.train(replace(batch_norm_task(), accumulate=parts), "single", simulated(1), steps=5)
    run = pl.train(batch_norm_task(), spec, simulated(workers), steps=5)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)
    for name, tensor in expected.state.items():
        torch.testing.assert_close(run.state[name], tensor, rtol=0, atol=1e-12)


def test_slices_make_a_difference_to_batch_norm():
    whole, in_slices = (train_plainly(batch_norm_task(), workers=n) for n in (1, 3))
    assert not torch.allclose(whole[0], in_slices[0], atol=1e-6)
    assert not torch.allclose(whole[1]["1.running_mean"], in_slices[1]["1.running_mean"], atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_a_cancelled_batch_leaves_no_trace_in_the_statistics(world):
    # The first worker is the quickest in some steps, and so slow in others that it is cancelled.
    late = {0: pl.times.Trace([0.0, 30.0]), 1: pl.times.Constant(0.1), 2: pl.times.Constant(0.1)}
    cluster = replace(WORLDS[world](3), delay=late)
    run = pl.train(batch_norm_task(), "k-sync:k=2", cluster, steps=6)
    cancelled = len(run.trace.spans[0].of(Kind.CANCELLED))
    assert 0 < cancelled < 6
    assert run.state["1.num_batches_tracked"] == 6 - cancelled
