"""The parts of all ranks, computed one after the other in one process, give the gradients of the whole model."""

import pytest
import torch
from by_hand import compute_whole
from segmented_models import gpt_task, task_of
from tasks import a_task, numbers, simulated
from tensor_by_hand import compute_in_parts, cut_in, replicas_of
from tensor_models import MODELS, encoder_task, language_task, model_task
from torch import nn

import paceline as pl
from paceline.model.cutting.layers import Layers
from paceline.model.replica import Replica

VOCABULARY = {"tokens": "vocabulary", "head": "column"}

TASKS = {
    **{kind: model_task(kind) for kind in MODELS},
    "encoder": encoder_task(dropout=0.2),
    "encoder, norms first": encoder_task(norm_first=True),
    "gpt": gpt_task(dropout=0.2),
    "perceptron": task_of("perceptron"),
    "vocabulary": language_task(tensor_plan=VOCABULARY),
    "tied vocabulary": language_task(tied=True, tensor_plan=VOCABULARY),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", TASKS)
def test_parts_give_the_gradients_of_the_whole(kind, size):
    if kind == "gpt" and size == 4:
        pytest.skip("it has two heads")
    task = TASKS[kind]
    loss, gradients, _ = compute_whole(task)
    found_loss, cut, found = compute_in_parts(task, size)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    for name, gradient in gradients.items():
        for position, each in enumerate(found):
            assert (name in each) == cut.shares.holds(name, position)
            if name in each:
                expected = cut.at(position).part(name, gradient)
                torch.testing.assert_close(each[name], expected, rtol=0, atol=1e-13, msg=f"{name} {position}")


@pytest.mark.slow
def test_a_stage_may_end_where_ranks_sum_or_elsewhere():
    task = TASKS["gpt"]
    loss, gradients, _ = compute_whole(task)
    for stages in (2, 3, 5):
        found_loss, cut, found = compute_in_parts(task, 2, stages)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert {segment.stage for segment in cut.segments} == set(range(stages))
        torch.testing.assert_close(found[1]["norm.weight"], gradients["norm.weight"], rtol=0, atol=1e-13)


def test_megatrons_sums_are_there_and_no_others():
    """Two forward and two backward in each block: after attention and perceptron, before both."""
    segments = cut_in(TASKS["gpt"], 2).segments
    assert sum(len(segment.reductions) for segment in segments) == 3 * 2
    assert sum(len(segment.gradient_reductions) for segment in segments) == 3 * 2
    assert len(segments) == 1 + 3 * 4


def test_what_the_model_is_called_with_needs_no_sum_of_its_gradient():
    segments = cut_in(TASKS["perceptron"], 2).segments
    assert sum(len(segment.gradient_reductions) for segment in segments) == 1, "of the second pair"


def test_a_rank_holds_its_share_of_the_matrices():
    task = TASKS["gpt"]
    cut = cut_in(task, 2)
    ranks = replicas_of(task, cut)
    whole = Replica.of(task, task.build_model(0))
    lengths = {n: shape.numel() for n, shape in zip(whole.layout.names, whole.layout.shapes, strict=True)}
    parted = sum(lengths[name] for name, split in cut.shares.of.items() if split is not None)
    common = sum(length for name, length in lengths.items() if name not in cut.shares.of)
    assert ranks[1].layout.length == parted // 2 + common


def test_each_rank_does_its_share_of_the_operations():
    assert 0.5 < sum(segment.share for segment in cut_in(TASKS["gpt"], 2).segments) < 0.75


def test_the_reporter_puts_the_whole_model_together():
    task = TASKS["tied vocabulary"]
    cut = cut_in(task, 3)
    ranks = replicas_of(task, cut)
    expected = {name: tensor.clone() for name, tensor in task.build_model(0).state_dict().items()}
    for position, rank in enumerate(ranks):
        ranks[0].inspection.put(range(len(cut.segments)), rank.parameters, [], position)
    for name, tensor in ranks[0].inspection.state().items():
        assert torch.equal(tensor, expected[name])


class Rotating(nn.Module):
    """Complex numbers between two layers, as in some rotary embeddings, and a convolution."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        self.conv = nn.Conv1d(5, 5, 3, padding=1)

    def forward(self, x):
        pairs = torch.view_as_complex(self.into(x).unflatten(-1, (4, 2)).contiguous())
        return self.out(torch.view_as_real(pairs * pairs).flatten(2) + self.conv(x)).mean(1)


def rotating_task():
    return a_task(model=lambda: Rotating().double(), data=(numbers(24, 5, 8), numbers(24, 2, seed=1)))


def test_gradients_through_complex_values_are_summed():
    expected = pl.train(rotating_task(), "single", simulated(1), steps=2).parameters
    run = pl.train(rotating_task(), "tensor", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_layers_that_are_not_split_are_listed():
    task = rotating_task()
    model = task.build_model(0)
    found = Layers.of(task, model, (numbers(7, 5, 8), numbers(7, 2)), tensor=2).model
    assert "conv" in found.replicated
    split = {name.rpartition(".")[0] for name in found.shares.of}
    assert split
    assert not split & set(found.replicated)
