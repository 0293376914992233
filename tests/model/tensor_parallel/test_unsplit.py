"""Layers after which a model cannot be cut are whole on every rank. The others are split."""

import torch
from refusals import refused
from tasks import a_task, numbers, simulated
from torch import nn

import paceline as pl
from paceline.model.cutting.layers import Layers


class Filled(nn.Module):
    """The outputs of the second pair of layers are written into a tensor, which exists before them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.third, self.fourth = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = x + self.second(torch.relu(self.first(x)))
        made = x.new_zeros(x.shape[0], 3, 2)
        for place in range(3):
            made[:, place] = self.fourth(torch.relu(self.third(x * (1 + place))))
        return made.mean(1)


def task_of(model, **changes):
    return a_task(model=lambda: model().double(), **changes)


def test_a_layer_without_a_place_to_cut_is_whole_and_the_others_are_split():
    task = task_of(Filled)
    found = Layers.of(task, task.build_model(0), (numbers(7, 4), numbers(7, 2)), tensor=2).model
    assert found.replicated == ("third", "fourth")
    assert {"first.weight", "second.weight"} <= found.shares.of.keys()
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "tensor", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_a_plan_that_needs_such_a_place_is_refused():
    plan = {"third": "column", "fourth": "row"}
    with refused("model"):
        pl.train(task_of(Filled, tensor_plan=plan), "tensor", simulated(2), steps=1)


def test_a_head_may_have_fewer_classes_than_ranks():
    data = numbers(24, 4), torch.arange(24) % 3
    task = a_task(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double(),
        data=data,
        loss=nn.functional.cross_entropy,
    )
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "tensor", simulated(4), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
