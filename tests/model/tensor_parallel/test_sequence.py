"""Between split layers each rank has its part of the sequence."""

import pytest
import torch
from by_hand import compute_whole
from conformance.cases import one_in
from refusals import has, refused
from segmented_models import gpt_task, task_of
from tasks import a_task, numbers
from tensor_by_hand import compute_in_parts, cut_in
from tensor_models import WIDTH, Gated, encoder_task, language_task, model_task
from torch import nn

VOCABULARY = {
    "tokens": "vocabulary",
    "head": "column",
    "block.gate": "column",
    "block.up": "column",
    "block.down": "row",
}


class Placed(nn.Module):
    """Places that are a parameter, a norm by hand that two blocks share, and a mean over the sequence at the end."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(3, WIDTH)
        self.places = nn.Parameter(torch.randn(1, 4, WIDTH))
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.first, self.second = Gated(), Gated()
        self.second.norm = self.first.norm
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = nn.functional.dropout(self.into(x) + self.places, 0.2)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return self.head(self.second(self.first(x)).mean(dim=1))


class Mixed(Placed):
    """One norm is used for parts, and for a value without a sequence."""

    def forward(self, x):
        return self.head(self.first.norm(self.first(self.into(x) + self.places)[:, 0]))


def placed_task(kind=Placed):
    return a_task(model=lambda: kind().double(), data=(numbers(24, 4, 3), numbers(24, 2, seed=1)))


TASKS = {
    "gpt": lambda: gpt_task(dropout=0.2),
    "vocabulary": lambda: language_task(tensor_plan=VOCABULARY),
    "tied vocabulary": lambda: language_task(tied=True, tensor_plan=VOCABULARY),
    "encoder": lambda: encoder_task(dropout=0.2, length=4),
    "encoder, norms first": lambda: encoder_task(dropout=0.2, length=4, norm_first=True),
    "interleaved": lambda: model_task("interleaved", length=4),
    "gated": lambda: model_task("gated", length=4),
    "placed": placed_task,
    "mixed": lambda: placed_task(Mixed),
}


@pytest.mark.parametrize("kind", one_in(4, zip(TASKS)))
def test_parts_of_sequences_give_the_gradients_of_the_whole(kind):
    task = TASKS[kind]()
    loss, gradients, _ = compute_whole(task)
    found_loss, cut, found = compute_in_parts(task, 2, sequence=True)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    for position, each in enumerate(found):
        for name, part in each.items():
            expected = cut.at(position).part(name, gradients[name])
            torch.testing.assert_close(part, expected, rtol=0, atol=1e-13, msg=f"{name} {position}")


def names_of(cut, field):
    return {name for segment in cut.segments for name in getattr(segment, field)}


def test_each_sum_becomes_a_scatter_and_a_gather():
    """In each block the inputs of attention and MLP are gathered, and their outputs scattered."""
    cut = cut_in(gpt_task(), 2, sequence=True)
    forward = [each.how for segment in cut.segments for each in segment.reductions]
    backward = [each.how for segment in cut.segments for each in segment.gradient_reductions]
    assert forward == ["take", *["gather", "scatter"] * 6, "gather"]
    assert backward == ["gather", "sum", *["scatter", "gather"] * 6, "take"]


@pytest.mark.slow
def test_norms_are_used_for_parts_and_all_other_parameters_as_without():
    plain, cut = (cut_in(gpt_task(), 2, sequence=sequence) for sequence in (False, True))
    assert cut.shares == plain.shares
    assert not names_of(plain, "partial")
    expected = {f"blocks.{n}.{norm}" for n in range(3) for norm in ("before_attention", "before_body")}
    assert {name.rpartition(".")[0] for name in names_of(cut, "partial")} == {*expected, "norm"}


def test_a_parameter_that_is_used_for_whole_values_too_is_used_for_whole_ones_alone():
    partial = names_of(cut_in(placed_task(Mixed), 2, sequence=True), "partial")
    assert "places" in partial
    assert not {name for name in partial if name.startswith("first.norm")}


def test_sequences_may_come_before_batches():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.block = nn.Linear(WIDTH, WIDTH), Gated()

        def forward(self, x):
            return self.block(self.into(x.transpose(0, 1))).transpose(0, 1)

    task = a_task(
        model=lambda: Turned().double(), data=(numbers(24, 4, WIDTH), numbers(24, 4, WIDTH, seed=1))
    )
    cut = cut_in(task, 2, sequence=True)
    dims = {each.dim for segment in cut.segments for each in segment.reductions if each.how == "scatter"}
    assert dims == {0}


REFUSED = [
    (lambda: model_task("gated"), 2, refused("size", 2, bound=has(5), remedy=has(1, 5))),
    (lambda: task_of("perceptron"), 2, refused("sequence", True)),
    (lambda: task_of("resnet"), 2, refused("sequence", True)),
]


@pytest.mark.parametrize(("make", "size", "refusal"), REFUSED, ids=["uneven", "perceptron", "resnet"])
def test_what_has_no_sequence_to_part_is_refused(make, size, refusal):
    with refusal:
        cut_in(make(), size, sequence=True)
