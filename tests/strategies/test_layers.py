import itertools

import pytest
import torch
from segmented_models import gpt_task, task_of
from tasks import WORLDS, simulated

import paceline as pl
from paceline.testing.checks import check_close
from paceline.trace import COMPUTING


@pytest.mark.parametrize(
    "kind", ["perceptron", "resnet", *(pytest.param(k, marks=pytest.mark.slow) for k in ("gpt", "encoder"))]
)
def test_it_gives_the_weights_of_single_batch_norm_included(kind):
    task = task_of(kind)
    expected = pl.train(task, "single", simulated(1), steps=4)
    for workers in (1, 2, 4):
        run = pl.train(task, "layers", simulated(workers), steps=4)
        for name, tensor in expected.state.items():
            torch.testing.assert_close(run.state[name], tensor, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", ["simulated", pytest.param("local", marks=pytest.mark.slow)])
def test_dropout_is_that_of_one_worker(world):
    task = gpt_task(dropout=0.3)
    expected = pl.train(task, "single", simulated(1), steps=4)
    check_close(pl.train(task, "layers", WORLDS[world](2), steps=4).parameters, expected.parameters)


def test_one_worker_works_at_a_time():
    run = pl.train(gpt_task(), "layers", simulated(3), steps=3)
    spans = sorted((s["start_s"], s["end_s"]) for each in run.trace.spans for s in each.of(*COMPUTING))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert len(spans) == 3 * 3 * 2


def test_without_messages_a_step_takes_as_long_as_one_worker_takes_for_the_slices_of_all():
    """The given time of a gradient is for a worker's slice, so that strategies can be compared."""
    ideal = {"link": pl.Link.ideal()}
    together = pl.train(gpt_task(), "all-reduce", simulated(3, **ideal), steps=3)
    run = pl.train(gpt_task(), "layers", simulated(3, **ideal), steps=3)
    assert run.seconds == pytest.approx(3 * together.seconds)


def test_cuts_say_how_many_stages_there_are():
    run = pl.train(gpt_task(), "layers:cuts=blocks.1", simulated(3), steps=1)
    assert run.messages_sent[2] == 0
