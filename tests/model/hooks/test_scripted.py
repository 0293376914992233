"""Modules of TorchScript have no hooks and no trace."""

import pytest
import torch
from refusals import refused
from tasks import a_task, simulated
from torch import nn

import paceline as pl


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh()))
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.first(x))


def whole():
    return torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double())


@pytest.mark.parametrize("model", [lambda: Scripted().double(), whole])
def test_zero_trains_a_scripted_module(model):
    task = a_task(model=model)
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "zero:stage=3", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", [lambda: Scripted().double(), whole])
def test_a_pipeline_of_a_scripted_module_is_refused(model):
    with refused("model"):
        pl.train(a_task(model=model), "pipeline", simulated(2), steps=1)
