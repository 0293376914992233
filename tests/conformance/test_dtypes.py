"""Parameters of several dtypes in one model give the weights of `single` in every strategy."""

import pytest
import torch
from tasks import numbers, sgd
from torch import nn

import paceline as pl
from paceline.testing.worlds import WORLDS, simulated


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


def mixed():
    wide = nn.Linear(4, 4).double()
    narrow = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
    return nn.Sequential(narrow[0], narrow[1], Cast(torch.float64), wide, Cast(torch.float32), narrow[2])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "strategy", ["all-reduce", "zero:stage=1", "zero:stage=2", "zero:stage=3", "pipeline", "layers"]
)
def test_single_and_double_precision_together(strategy, world):
    data = numbers(24, 4, dtype=torch.float32), numbers(24, 2, seed=1, dtype=torch.float32)
    task = pl.Task(model=mixed, data=data, loss=nn.functional.mse_loss, optimizer=sgd, batch_size=8)
    expected = pl.train(task, "single", simulated(1), steps=3).state
    found = pl.train(task, strategy, WORLDS[world](2), steps=3).state
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
