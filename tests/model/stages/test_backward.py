"""A backward pass in two parts, compared with one pass."""

import pytest
import torch
from torch import nn

from paceline.model.stages.backward import gradients, input_gradients


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


class Twice(nn.Module):
    """A layer that is used twice on the way from input to output."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Beside(nn.Module):
    """An output that does not depend on the input, and a weight that nothing depends on."""

    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
        self.own = nn.Parameter(numbers(3, 4))

    def forward(self, x):
        return self.layer(x) * self.own.exp(), self.own.sin(), x


MODELS = {
    "chain": lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 4)),
    "used twice": Twice,
    "beside": Beside,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 3, padding=1), nn.BatchNorm1d(3), nn.Flatten()
    ),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


def passed(model, x):
    made = model(x)
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("name", MODELS)
def test_two_parts_give_what_one_gives(name):
    model = MODELS[name]().double()
    weights = list(model.parameters())
    x = numbers(3, 4).requires_grad_()
    outputs = passed(model, x)
    given = [numbers(*output.shape) for output in outputs]
    expected = gradients(outputs, given, [x, *weights])
    outputs = passed(model, x)
    of_inputs, rest = input_gradients(outputs, given, [x], weights)
    del outputs
    for found, value in zip([*of_inputs, *rest.gradients()], expected, strict=True):
        assert (found is None) == (value is None)
        if value is not None:
            torch.testing.assert_close(found, value, rtol=0, atol=1e-12)


def test_without_inputs_everything_is_left_for_the_weights():
    layer = nn.Linear(4, 2).double()
    output = layer(numbers(3, 4))
    of_inputs, rest = input_gradients([output], [torch.ones_like(output)], [], list(layer.parameters()))
    assert of_inputs == []
    torch.testing.assert_close(rest.gradients()[1], torch.full((2,), 3.0, dtype=torch.float64))


def test_the_first_part_computes_no_gradient_of_weights():
    """Only the second part computes the products for the weights."""
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).double()
    x = numbers(8, 16).requires_grad_()
    output, weights = model(x), list(model.parameters())
    with FlopCounterMode(display=False) as first:
        _, rest = input_gradients([output], [torch.ones_like(output)], [x], weights)
    with FlopCounterMode(display=False) as second:
        rest.gradients()
    product = 2 * 8 * 16 * 16
    assert first.get_total_flops() == 4 * product
    assert second.get_total_flops() == 4 * product


def test_of_no_outputs_nothing_has_a_gradient():
    weight = torch.ones(2, requires_grad=True)
    assert gradients([], [], [weight]) == [None]
