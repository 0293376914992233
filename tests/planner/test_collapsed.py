import pytest
import torch
from torch import nn

import paceline as pl
from paceline.model.cutting.layers import Layers
from paceline.planner.collapsed import shortened, stand_ins
from paceline.planner.facts import facts_of


def test_of_a_run_of_equal_layers_three_remain():
    model = pl.models.GPT(6, 16, 2, 8, 32, 4).model
    assert [name for name, _ in shortened(model).blocks.named_children()] == ["0", "1", "2"]
    assert [stand_in for name, stand_in in stand_ins(model) if name.startswith("blocks")] == [
        "blocks.0",
        "blocks.1",
        "blocks.1",
        "blocks.1",
        "blocks.1",
        "blocks.2",
    ]


def test_different_layers_remain():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert [name for name, _ in shortened(model).named_children()] == ["0", "1", "2"]


@pytest.mark.parametrize("tensor", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_long_model_is_cut_as_if_it_had_been_examined_as_a_whole(tensor):
    task = pl.models.GPT(6, 16, 2, 8, 32, 4, dtype=torch.bfloat16)
    tokens = torch.zeros(3, 8, dtype=torch.int64, device="meta")
    whole = Layers.of(task, task.model, [tokens, tokens], tensor=tensor).cut(3)
    found = facts_of(task).layers(tensor, sequence=False)[0].cut(3)
    assert len(found.segments) == len(whole.segments)
    for one, other in zip(found.segments, whole.segments, strict=True):
        assert (one.first, one.stage, one.parameters, one.values_out) == (
            other.first,
            other.stage,
            other.parameters,
            other.values_out,
        )
        assert (one.reductions, one.gradient_reductions) == (other.reductions, other.gradient_reductions)
        assert one.flops == pytest.approx(other.flops)
        assert (one.launches, one.parted) == (other.launches, other.parted)
