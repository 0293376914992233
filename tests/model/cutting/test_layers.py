"""Cuts of models, and errors for models that cannot be cut."""

import pytest
import torch
from by_hand import cut_of, first_batch, layers_of
from refusals import has, refused
from segmented_models import KINDS, SmallGPT, task_of
from tasks import a_task, numbers
from torch import nn

from paceline.model.cutting.layers import Layers, few_samples

GPT, DEEP = task_of("gpt"), task_of("gpt", blocks=8)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_cover_the_model_and_share_its_operations(kind):
    task = task_of(kind)
    model = task.build_model(0)
    for count in (1, 2, 3):
        segments = cut_of(task, count).segments
        assert [segment.number for segment in segments] == list(range(count))
        names = {name for segment in segments for name in segment.parameters}
        assert names == {name for name, _ in model.named_parameters()}
        assert sum(segment.share for segment in segments) == pytest.approx(1)
        assert [s.bytes_out for s in segments[:-1]] == [s.bytes_in for s in segments[1:]]
        assert segments[0].bytes_in == segments[-1].bytes_out == 0


@pytest.mark.parametrize("kind", ["perceptron", "resnet"])
def test_a_model_is_left_as_it_was(kind):
    task = task_of(kind)
    model = task.build_model(0).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Layers.of(task, model, few_samples(*first_batch(task))).cut(2)
    assert not model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_transformer_is_cut_between_its_blocks():
    """The least data crosses there: one value per token. Inside a block the residual connection would cross as
    well."""
    segments = cut_of(DEEP, 4).segments
    assert [segment.bytes_out for segment in segments[:-1]] == [6 * 8 * 8] * 3
    assert all(segment.share == pytest.approx(0.25, abs=0.08) for segment in segments)


@pytest.mark.slow
def test_two_cuts_of_one_model_are_the_same():
    assert cut_of(task_of("gpt"), 3).bounds == cut_of(task_of("gpt"), 3).bounds


def test_cuts_can_be_given_by_the_layers_after_them():
    segments = cut_of(GPT, 3, ["blocks.1", "norm"]).segments
    assert segments[1].first.startswith("blocks.1")
    assert segments[2].first.startswith("norm")
    assert [s.first for s in cut_of(task_of("perceptron"), 3, ["2", "3"]).segments] == ["0", "2", "3"]


@pytest.mark.parametrize(
    ("cuts", "refusal"),
    [
        (["blocks.9"], refused("cuts", "blocks.9")),
        (
            ["blocks.1", "blocks.2"],
            refused("cuts", "blocks.1+blocks.2"),
        ),
        (["tokens"], refused("cuts", "tokens")),
    ],
)
def test_cuts_that_cannot_be_are_refused(cuts, refusal):
    with refusal:
        cut_of(GPT, 2, cuts)


def test_cuts_out_of_order_are_refused():
    with refused("cuts", "3+2", bound=has("in forward")):
        cut_of(task_of("perceptron"), 3, ["3", "2"])


def test_more_segments_than_layers_are_refused_with_both_numbers():
    task = task_of("perceptron")
    assert layers_of(task).most == 6
    with refused("stages x chunks", 7, bound=has(1, 6)):
        cut_of(task, 7)


def test_a_layer_that_works_in_place_stays_with_the_one_before():
    def model():
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)).double()

    assert layers_of(task_of("perceptron", model=model)).most == 2
    with refused("cuts", "1"):
        cut_of(task_of("perceptron", model=model), 2, ["1"])


class Pair(nn.Module):
    def forward(self, x):
        return x, 2 * x


class Sum(nn.Module):
    def forward(self, pair):
        return pair[0] + pair[1]


def test_what_is_no_tensor_does_not_cross_a_cut():
    def model():
        return nn.Sequential(nn.Linear(4, 5), Pair(), Sum(), nn.Linear(5, 2)).double()

    with refused("cuts", "2", bound=has(1)):
        cut_of(task_of("perceptron", model=model), 2, ["2"])
    assert layers_of(task_of("perceptron", model=model)).most == 3


class Choosing(nn.Module):
    """A model with control flow that depends on its data."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Routed(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), broken), nn.Linear(4, 2)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_layer_that_cannot_be_traced_is_named_with_the_reason():
    task = a_task(model=lambda: Routed(Choosing()).double())
    with refused("model", bound=has("blocks.0.1", "Choosing")):
        cut_of(task, 2)


def test_a_layer_of_a_sequential_may_look_at_its_data():
    def model():
        return nn.Sequential(nn.Linear(4, 5), Choosing(), nn.Linear(5, 2)).double()

    assert cut_of(task_of("perceptron", model=model), 3).segments[1].first == "1"


def test_a_step_of_the_users_own_cannot_be_cut():
    def step(model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    with refused("step", step):
        cut_of(a_task(loss=None, step=step), 2)


def test_samples_to_try_are_as_many_as_no_dimension_has():
    task = a_task(data=(numbers(24, 5, 7), numbers(24, 2)), batch_size=20)
    inputs, _ = few_samples(*first_batch(task))
    assert len(inputs) == 3


def test_sizes_that_follow_from_the_inputs_are_not_sent():
    """Every block uses the length of the text and the batch size. Each rank takes them from its own samples."""
    cut = cut_of(DEEP, 4)
    for number in range(1, 4):
        assert len(cut.model._crossing[cut.bounds[number]]) == 1


def test_a_trace_takes_texts_of_other_lengths():
    model = SmallGPT(length=6).double()
    cut = cut_of(GPT, 2)
    short = torch.randint(0, 11, (3, 4))
    from paceline.model.cutting.parts import Arguments

    middle = cut.compute(model, 0)(Arguments((short,), {}), [])
    found = cut.compute(model, 1)(Arguments((short,), {}), middle)
    torch.testing.assert_close(found, model(short))
