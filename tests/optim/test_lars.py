"""LARS against its formula, step by step, written out with Python's numbers of torch's double precision."""

import pytest
import torch
from refusals import refused
from tasks import numbers
from torch import nn

import paceline as pl


def formula(weights, gradients, *, lr, momentum, decay, eta):
    """v = momentum v + lr r (g + decay w), w = w - v."""
    velocity = None
    for gradient in gradients:
        ratio = (
            eta * weights.norm() / (gradient.norm() + decay * weights.norm()) if weights.dim() > 1 else 1.0
        )
        scaled = lr * ratio * (gradient + decay * weights)
        velocity = scaled if velocity is None else momentum * velocity + scaled
        weights = weights - velocity
    return weights


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 2), (5,), (1,)], ids=str)
@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.05), (0.0, 0.0), (0.5, 0.2)])
def test_each_step_is_that_of_the_formula(shape, momentum, decay):
    start, gradients = numbers(*shape, seed=1), [numbers(*shape, seed=step) for step in range(2, 7)]
    parameter = nn.Parameter(start.clone())
    optimizer = pl.optim.LARS([parameter], 0.5, momentum=momentum, weight_decay=decay, eta=0.02)
    for count in range(1, len(gradients) + 1):
        parameter.grad = gradients[count - 1].clone()
        optimizer.step()
        expected = formula(start, gradients[:count], lr=0.5, momentum=momentum, decay=decay, eta=0.02)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-14)


def test_the_first_momentum_is_the_scaled_gradient():
    parameter = nn.Parameter(torch.full((2, 2), 2.0).double())
    parameter.grad = torch.ones(2, 2).double()
    optimizer = pl.optim.LARS([parameter], 0.5, eta=0.1)
    optimizer.step()  # |w| = 4, |g| = 2
    expected = torch.full((2, 2), 0.5 * 0.1 * 4 / 2).double()
    torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], expected)


def test_a_weight_matrix_of_zeros_takes_a_plain_step():
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.ones(2, 2)
    pl.optim.LARS([parameter], 0.5).step()
    assert torch.equal(parameter.detach(), torch.full((2, 2), -0.5))


def test_groups_have_their_own_settings_and_unused_parameters_stay():
    start = numbers(3, 2)
    first, second, unused = (nn.Parameter(start.clone()) for _ in range(3))
    groups = [{"params": [first], "eta": 0.1}, {"params": [second, unused], "weight_decay": 0.3}]
    first.grad = second.grad = numbers(3, 2, seed=1)
    pl.optim.LARS(groups, 0.2).step()
    for parameter, settings in ((first, {"eta": 0.1, "decay": 0}), (second, {"eta": 0.001, "decay": 0.3})):
        expected = formula(start, [first.grad], lr=0.2, momentum=0.9, **settings)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-15)
    assert torch.equal(unused.detach(), start)


@pytest.mark.parametrize(
    ("argument", "value"), [("lr", -1.0), ("momentum", 1.0), ("weight_decay", -0.1), ("eta", float("inf"))]
)
def test_a_setting_out_of_bounds_is_refused(argument, value):
    with refused(argument, value):
        pl.optim.LARS([nn.Parameter(torch.ones(2))], **{"lr": 0.1, argument: value})
