"""Choice of the layers to split, with a plan or automatically."""

import pytest
import torch
from by_hand import first_batch
from refusals import has, refused
from segmented_models import gpt_task, task_of
from tasks import a_task, numbers
from tensor_models import MODELS, encoder_task, language_task, model_task
from torch import nn

from paceline.model.cutting.layers import Layers, few_samples
from paceline.model.tensor_parallel.planning import roles_of
from paceline.model.tensor_parallel.spec import Split


def shares_of(task, size=2):
    layers = Layers.of(task, task.build_model(0), few_samples(*first_batch(task)), tensor=size)
    return layers.model.shares.of


def splits(task, size=2):
    """Of each weight: by columns or rows, in how many blocks of how many units."""
    return {
        name: ("column" if split.dim == 0 else "row", split.blocks, split.units)
        for name, split in shares_of(task, size).items()
        if name.endswith("weight")
    }


FOUND = {
    "separate": {
        "query": ("column", 1, 4),
        "key": ("column", 1, 4),
        "value": ("column", 1, 4),
        "out": ("row", 1, 4),
    },
    "interleaved": {"into": ("column", 1, 4), "out": ("row", 1, 4)},
    "in-three": {"into": ("column", 3, 4), "out": ("row", 1, 4)},
    "gated": {"gate": ("column", 1, 12), "up": ("column", 1, 12), "down": ("row", 1, 12)},
    "fused": {"up": ("column", 2, 12), "down": ("row", 1, 12)},
    "sliced": {"up": ("column", 2, 12), "down": ("row", 1, 12)},
}


@pytest.mark.parametrize("kind", FOUND)
def test_heads_and_pairs_are_found_however_they_are_written(kind):
    expected = {f"{n}.{name}.weight": split for n in range(2) for name, split in FOUND[kind].items()}
    assert splits(model_task(kind)) == expected


def test_layers_with_untransposed_weights_are_split_in_the_other_dimension():
    shares = shares_of(model_task("untransposed"))
    found = {name: (split.dim, split.blocks, split.units) for name, split in shares.items() if split}
    assert found["0.into.weight"] == (1, 3, 4)
    assert found["0.into.bias"] == (0, 3, 4)
    assert found["0.out.weight"] == (0, 1, 4)
    assert found["1.up.weight"] == (1, 1, 16)
    assert found["1.down.weight"] == (0, 1, 16)


def test_torchs_own_transformer_is_split_by_heads_and_columns():
    found = splits(encoder_task())
    assert found["layers.1.self_attn.in_proj_weight"] == ("column", 3, 4)
    assert found["layers.1.self_attn.out_proj.weight"] == ("row", 1, 4)
    assert found["layers.1.linear1.weight"] == ("column", 1, 16)
    assert found["layers.1.linear2.weight"] == ("row", 1, 16)
    assert not any("norm" in name for name in found)


def test_a_language_models_blocks_are_split_and_its_tied_embedding_is_not():
    found = splits(gpt_task())
    assert len(found) == 3 * 4
    assert "tokens.weight" not in found


def test_the_bias_of_rows_is_the_first_ranks_alone():
    found = shares_of(model_task("fused"))
    assert found["0.down.bias"] is None
    assert found["0.up.bias"] == Split(0, 12, blocks=2)


def test_without_pairs_each_layer_is_split_by_columns():
    assert splits(task_of("resnet")) == {"head.weight": ("column", 1, 3)}


def test_a_plan_splits_what_it_names_and_nothing_else():
    plan = {"block.up": "column", "tokens": "vocabulary"}
    assert splits(language_task(tensor_plan=plan)) == {
        "block.up.weight": ("column", 1, 12),
        "tokens.weight": ("column", 1, 12),
    }


def test_a_star_stands_for_one_part_of_a_name():
    model = encoder_task().build_model(0)
    roles = roles_of({"layers.*.linear1": "column", "*.1.linear2": "row"}, model)
    assert roles == {
        "layers.0.linear1.weight": "column",
        "layers.1.linear1.weight": "column",
        "layers.1.linear2.weight": "row",
    }


def test_attention_is_named_as_a_whole():
    roles = roles_of({"layers.0.self_attn": "heads"}, encoder_task().build_model(0))
    assert roles == {
        "layers.0.self_attn.in_proj_weight": "column",
        "layers.0.self_attn.out_proj.weight": "row",
    }


def a_convolution():
    return nn.Sequential(nn.Conv1d(5, 5, 1), nn.Flatten()).double()


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return self.down(torch.sort(self.up(x), dim=-1).values)


REFUSED = [
    (
        lambda: language_task(tensor_plan={"blok.up": "column"}),
        2,
        refused("tensor_plan", "blok.up", remedy=has("block.up")),
    ),
    (
        lambda: language_task(tensor_plan={"block": "column"}),
        2,
        refused("tensor_plan", "column", bound=has("block", "Gated")),
    ),
    (
        lambda: language_task(tensor_plan={"tokens": "column"}),
        2,
        refused("tensor_plan", "column", bound=has("vocabulary", "tokens")),
    ),
    (
        lambda: model_task("separate"),
        3,
        refused("size", 3, bound=has(4, "0.query"), remedy=has(1, 2, 4)),
    ),
    (lambda: model_task("fused"), 13, refused("size", 13, bound=has(12, "0.up"))),
    (
        lambda: a_task(model=a_convolution, data=(numbers(24, 5, 8), numbers(24, 40))),
        2,
        refused("model", has("nn.Linear")),
    ),
    (
        lambda: a_task(
            model=lambda: Sorted().double(),
            data=(numbers(24, 8), numbers(24, 8)),
            tensor_plan={"up": "column", "down": "row"},
        ),
        2,
        refused("tensor_plan", has("sort"), bound=has("sort")),
    ),
    (
        lambda: model_task("gated", optimizer=torch.optim.Adafactor),
        2,
        refused("optimizer", "Adafactor"),
    ),
]


@pytest.mark.parametrize(("make", "size", "refusal"), REFUSED)
def test_what_cannot_be_split_is_refused_with_the_reason(make, size, refusal):
    with refusal:
        shares_of(make(), size)


def test_every_kind_of_model_is_split():
    assert {"separate", *FOUND} <= MODELS.keys()
