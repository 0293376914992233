"""A trace has no custom backward passes and no hooks of gradients: `zero` uses hooks, other strategies refuse."""

import pytest
import torch
from refusals import refused
from tasks import a_task, simulated
from torch import nn
from torch.utils.checkpoint import checkpoint

import paceline as pl


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Between(nn.Module):
    """Two layers with something between them."""

    def __init__(self, change):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.change = change

    def forward(self, x):
        return self.second(torch.tanh(self.change(self.first(x))))


def with_hook(x):
    x.register_hook(lambda gradient: -gradient)
    return x


def hooked_layer():
    model = Between(nn.Identity())
    model.first.register_full_backward_pre_hook(lambda _, gradients: (-gradients[0],))
    return model


MODELS = {
    "function": lambda: Between(Reversed.apply),
    "hook of a tensor": lambda: Between(with_hook),
    "hook of a layer": hooked_layer,
    "checkpoint with re-entry": lambda: Between(lambda x: checkpoint(torch.sin, x, use_reentrant=True)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_zero_keeps_own_gradients(kind):
    task = a_task(model=lambda: MODELS[kind]().double())
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "zero:stage=3", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", MODELS)
def test_other_strategies_refuse_them(kind):
    before = torch.Tensor.register_hook
    with refused("model"):
        pl.train(a_task(model=lambda: MODELS[kind]().double()), "layers", simulated(2), steps=1)
    assert torch.Tensor.register_hook is before
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
