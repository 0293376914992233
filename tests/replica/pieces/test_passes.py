import pytest
import torch
from torch import nn

from paceline.context import Crossing
from paceline.replica.pieces.passes import Passes


def passes_of(layer, taken):
    def take(weights, found):
        taken.append(found)

    return Passes(lambda _, values: [layer(values[0])], list(layer.parameters()), take)


def test_a_value_that_no_output_depends_on_has_a_gradient_of_zero():
    taken = []
    layer = nn.Linear(3, 2)
    passes = Passes(
        lambda _, values: [layer(values[0])], list(layer.parameters()), lambda *_: taken.append(1)
    )
    made = passes.forward(0, None, Crossing((torch.ones(2, 3), torch.ones(2, 3)), (True, True)))
    first, second = passes.backward(0, [torch.ones_like(made.tensors[0])])
    assert torch.equal(second, torch.zeros(2, 3))
    assert not torch.equal(first, second)


def test_a_value_that_only_passes_by_keeps_its_gradient():
    layer = nn.Linear(3, 2)
    passes = Passes(
        lambda _, values: [layer(values[0]), values[1]], list(layer.parameters()), lambda *_: None
    )
    for parted in (False, True):
        passes.forward(0, None, Crossing((torch.ones(2, 3), torch.ones(4)), (True, True)))
        walk = passes.backward_inputs if parted else passes.backward
        _, passed = walk(0, [torch.ones(2, 2), torch.arange(4.0)])
        assert torch.equal(passed, torch.arange(4.0))


def test_what_crosses_is_apart_from_the_graph():
    passes = passes_of(nn.Linear(3, 2), [])
    made = passes.forward(0, None, Crossing((torch.ones(2, 3),), (True,)))
    assert made.wanted == (True,)
    assert not made.tensors[0].requires_grad


def test_random_numbers_go_on_only_if_some_were_drawn():
    plain = passes_of(nn.Linear(3, 2), []).forward(0, None, Crossing((torch.ones(2, 3),), (True,)))
    assert plain.chance is None
    layer = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    drawn = passes_of(layer, []).forward(0, None, Crossing((torch.ones(2, 3),), (True,)))
    assert torch.equal(drawn.chance, torch.default_generator.get_state())


def test_the_weight_of_a_loss_is_in_its_gradients():
    layer, taken = nn.Linear(3, 1), []
    passes = Passes(
        lambda _, values: layer(values[0]), list(layer.parameters()), lambda _, found: taken.append(found)
    )
    loss = passes.forward(0, None, Crossing((torch.ones(2, 3),), (False,)), lambda made: made.mean(), 0.25)
    assert loss == pytest.approx(layer(torch.ones(2, 3)).mean().item())
    passes.backward(0, ())
    torch.testing.assert_close(taken[0][1], torch.tensor([0.25]))
