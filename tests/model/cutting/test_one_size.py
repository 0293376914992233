"""Models that torch.export can trace for one size of batch only are traced for the micro-batches of the run."""

import pytest
import torch
from refusals import refused
from tasks import a_task, numbers, simulated
from torch import nn

import paceline as pl


class Samplewise(nn.Module):
    """A loop over the samples of a batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return torch.stack([self.second(torch.tanh(row)) for row in self.first(x)])


class Stateful(nn.Module):
    """A state for batches of four samples."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("state", numbers(4, 8, seed=3).float())

    def forward(self, x):
        return self.second(torch.tanh(self.first(x) + self.state))


def task_of(model, **changes):
    given = {"batch_size": 4, "data": (numbers(32, 4), numbers(32, 2, seed=1))}
    return a_task(model=lambda: model().double(), **given | changes)


@pytest.mark.parametrize("spec", ["pipeline:microbatches=2", "tensor", "hybrid:data=2,pipeline=2"])
def test_a_loop_over_samples_is_traced_for_micro_batches(spec):
    task = task_of(Samplewise, batch_size=16)
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, spec, simulated(4 if "hybrid" in spec else 2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["layers", "tensor"])
def test_a_state_of_the_batch_size_is_traced_for_batches(spec):
    expected = pl.train(task_of(Stateful), "single", simulated(1), steps=2).parameters
    run = pl.train(task_of(Stateful), spec, simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_micro_batches_of_several_sizes_are_refused():
    with refused("batch_size", value="sizes 5, 6"):
        pl.train(task_of(Samplewise, batch_size=16), "pipeline:microbatches=3", simulated(2), steps=1)


def test_a_smaller_last_batch_is_refused_before_the_first_step():
    with refused("batch_size", value="sizes 2, 5"):
        pl.train(task_of(Samplewise, batch_size=5), "layers", simulated(2), steps=1)
    pl.train(task_of(Samplewise, batch_size=5, drop_last=True), "layers", simulated(2), steps=1)
