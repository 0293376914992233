"""A Sequential of shapes alone is traced layer by layer, and gives what tracing all of it gives."""

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.model.cutting import traced
from paceline.model.cutting.layer_by_layer import trace_layers
from paceline.model.cutting.parts import Arguments
from paceline.model.cutting.traced import Traced


def on_meta(model: nn.Module) -> nn.Module:
    return model.to("meta")


def tokens() -> Arguments:
    return Arguments((torch.zeros(5, 7, dtype=torch.int64, device="meta"),), {})


def values() -> Arguments:
    return Arguments((torch.zeros(5, 6, device="meta"),), {})


MODELS = {
    "gpt": lambda: (pl.models.GPT(3, 8, 2, 7, 11, 5).model, tokens()),
    "tied": lambda: (pl.models.GPT(2, 8, 2, 7, 11, 5, tied=True).model, tokens()),
    "buffers": lambda: (
        on_meta(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Sequential(nn.ReLU(), nn.Linear(6, 2)))),
        values(),
    ),
}


@pytest.mark.parametrize("kind", ["gpt", "buffers", pytest.param("tied", marks=pytest.mark.slow)])
def test_parts_are_those_of_the_whole_model(kind, monkeypatch):
    model, arguments = MODELS[kind]()
    ours = Traced(model, arguments, 5)
    monkeypatch.setattr(traced, "trace_layers", lambda *_: None)
    whole = Traced(model, arguments, 5)
    assert ours.parts == whole.parts


def test_a_segment_computes_what_the_layers_do():
    model, arguments = MODELS["gpt"]()
    parts = Traced(model, arguments, 5)
    cut = next(n for n, part in enumerate(parts.parts) if part.name.startswith("blocks.1"))
    crossing = parts.compute(model, 0, cut)(arguments, ())
    made = parts.compute(model, cut, len(parts.parts))(arguments, crossing)
    assert made.shape == model(*arguments.args).shape


def test_layers_with_data_are_traced_as_a_whole():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    assert trace_layers(model, Arguments((torch.zeros(5, 6),), {}), 5) is None


def test_values_that_do_not_begin_with_the_samples_need_the_whole():
    model = on_meta(nn.Sequential(nn.Linear(6, 6), nn.Flatten(0), nn.Linear(30, 2)))
    assert trace_layers(model, values(), 5) is None
