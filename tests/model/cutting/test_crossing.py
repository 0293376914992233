"""Values that cross cuts, on a rank that holds all segments, but gathers and frees their parameters."""

import pytest
import torch
from tasks import a_task, simulated
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import paceline as pl


class Normed(nn.Module):
    """A view of a weight is used after the cut behind it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), spectral_norm(nn.Linear(8, 8))
        self.third = nn.Linear(8, 2)

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


class Mapped(nn.Module):
    """A model cannot be cut within torch.vmap."""

    def __init__(self):
        super().__init__()
        self.weights, self.layer, self.out = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(3, 2)

    def forward(self, x):
        weights = self.weights(x).view(-1, 4, 3)
        return self.out(torch.vmap(lambda row, weight: torch.tanh(row) @ weight)(self.layer(x), weights))


class Quantized(nn.Module):
    """A buffer that a backward pass needs, and one that changes in the forward pass."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 3), nn.Linear(3, 2)
        self.register_buffer("codes", torch.arange(15.0).view(5, 3) / 10)
        self.register_buffer("counts", torch.zeros(5))

    def forward(self, x):
        made = self.encode(x)
        nearest = torch.cdist(made, self.codes).argmin(1)
        with torch.no_grad():
            self.counts += nn.functional.one_hot(nearest, 5).to(x.dtype).sum(0)
        return self.decode(made + (self.codes[nearest] - made).detach())


@pytest.mark.parametrize("model", [Normed, Mapped, Quantized])
def test_segments_give_the_weights_of_single(model):
    task = a_task(model=lambda: model().double())
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "zero:stage=3", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
