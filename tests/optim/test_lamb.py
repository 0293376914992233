"""LAMB against its formula, step by step."""

import pytest
import torch
from refusals import refused
from tasks import numbers
from torch import nn

import paceline as pl


def formula(weights, gradients, *, lr, betas, eps, decay):
    """w = w - lr |w| / |u| u, u = Adam's direction with bias correction plus decay w."""
    mean = square = torch.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        unbiased = mean / (1 - betas[0] ** step), square / (1 - betas[1] ** step)
        direction = unbiased[0] / (unbiased[1].sqrt() + eps) + decay * weights
        weights = weights - lr * weights.norm() / direction.norm() * direction
    return weights


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 2), (5,), (1,)], ids=str)
@pytest.mark.parametrize(("betas", "decay"), [((0.9, 0.999), 0.0), ((0.8, 0.95), 0.1)])
def test_each_step_is_that_of_the_formula(shape, betas, decay):
    start, gradients = numbers(*shape, seed=1), [numbers(*shape, seed=step) for step in range(2, 7)]
    parameter = nn.Parameter(start.clone())
    optimizer = pl.optim.LAMB([parameter], 0.05, betas=betas, weight_decay=decay)
    for count in range(1, len(gradients) + 1):
        parameter.grad = gradients[count - 1].clone()
        optimizer.step()
        expected = formula(start, gradients[:count], lr=0.05, betas=betas, eps=1e-6, decay=decay)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-13)


def test_a_parameter_of_zeros_moves_by_adams_direction():
    parameter = nn.Parameter(torch.zeros(3).double())
    parameter.grad = torch.tensor([1.0, -2.0, 3.0]).double()
    pl.optim.LAMB([parameter], 0.5, eps=0.0).step()
    expected = torch.tensor([-0.5, 0.5, -0.5]).double()
    torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("argument", "value"), [("lr", -1.0), ("eps", -1.0), ("weight_decay", float("nan")), ("betas", (0.9,))]
)
def test_a_setting_out_of_bounds_is_refused(argument, value):
    with refused(argument):
        pl.optim.LAMB([nn.Parameter(torch.ones(2))], **{argument: value})


def test_a_beta_of_one_is_refused():
    with refused("betas", 1.0):
        pl.optim.LAMB([nn.Parameter(torch.ones(2))], betas=(0.9, 1.0))
