import pytest
import torch
from torch import nn

from paceline.model.cutting.layer_signature import layer_signature, shapes_of


class Scaled(nn.Module):
    def __init__(self, factor, extra=None):
        super().__init__()
        self.factor = factor
        self.extra = extra
        self.layer = nn.Linear(2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 3),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU()),
        lambda: nn.TransformerEncoderLayer(8, 2, 16),
        lambda: Scaled(2.0, (1, "a")),
    ],
)
def test_layers_that_are_made_alike_are_alike_whatever_their_numbers(make):
    assert layer_signature(make()) is not None
    assert layer_signature(make()) == layer_signature(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Linear(2, 3), nn.Linear(3, 2)),
        (nn.Linear(2, 3), nn.Linear(2, 3, bias=False)),
        (nn.MaxPool2d(2), nn.MaxPool2d(3)),
        (nn.ReLU(), nn.Tanh()),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (Scaled(2.0), Scaled(3.0)),
        (Scaled(1), Scaled(True)),
        (nn.Linear(2, 3), nn.Linear(2, 3).double()),
        (nn.Linear(2, 3), nn.Linear(2, 3).eval()),
        (Scaled(1, torch.relu), Scaled(1, torch.tanh)),
    ],
)
def test_layers_that_differ_in_anything_are_not_alike(one, other):
    assert layer_signature(one) != layer_signature(other)


def test_what_cannot_be_compared_is_like_nothing():
    hooked = nn.Linear(2, 3)
    hooked.register_forward_hook(lambda *_: None)
    for layer in (hooked, Scaled(1, [1]), Scaled(1, object()), Scaled(1, torch.ones(2))):
        assert layer_signature(layer) is None


def test_shapes_tell_tensors_apart_but_not_their_numbers():
    assert shapes_of(torch.ones(2, 3)) == shapes_of(torch.zeros(2, 3))
    assert shapes_of(torch.ones(2, 3)) != shapes_of(torch.ones(3, 2).t())
    assert shapes_of((torch.ones(2), 1)) != shapes_of((torch.ones(2), 2))
    assert shapes_of((torch.ones(2), 1)) != shapes_of([torch.ones(2), 1])
    assert shapes_of((torch.ones(2), object())) is None
