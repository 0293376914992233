import pytest
import torch
from tasks import a_task, numbers, simulated
from torch import nn

import paceline as pl
from paceline.model.cutting.parts import Arguments
from paceline.model.cutting.traced import Traced


class ChangesAView(nn.Module):
    """A value is changed through a view of it, after two more layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        early = self.a(x)
        later = self.c(self.b(early).tanh())
        early[:, 0].mul_(2)
        return later + early


class Untwisted(nn.Module):
    """`contiguous` is without effect in the trace, because two transpositions cancel out."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        swapped = self.into(x).view(-1, 2, 3).transpose(1, 2)
        return self.out(swapped.tanh().transpose(1, 2).contiguous().view(-1, 6))


def of(model):
    return Traced(model, Arguments((torch.randn(5, 4),), {}), 5)


def test_no_cut_separates_a_value_from_a_view_that_is_changed_later():
    found = of(ChangesAView())
    before = [part for part in found.parts if part.name in ("a", "b", "tanh", "c")]
    assert len(before) == 4
    assert all(part.obstacle for part in before)


@pytest.mark.parametrize("model", [Untwisted, ChangesAView])
def test_every_place_without_an_obstacle_gives_the_whole_models_outputs(model):
    model, x = model(), torch.randn(5, 4)
    found = of(model)
    places = [place for place, part in enumerate(found.parts[:-1], 1) if not part.obstacle]
    for place in places:
        middle = [each.contiguous() for each in found.compute(model, 0, place)(Arguments((x,), {}), [])]
        made = found.compute(model, place, len(found.parts))(Arguments((x,), {}), middle)
        torch.testing.assert_close(made, model(x))
    assert places


def test_a_value_with_other_strides_after_a_cut_can_be_viewed():
    task = a_task(model=lambda: Untwisted().double(), data=(numbers(24, 4), numbers(24, 4, seed=1)))
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "zero:stage=3,segments=7", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


class Counting(nn.Module):
    """An integer buffer counts the calls, and two layers use it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.c(torch.tanh(self.b(self.a(x) * self.calls))) / self.calls


@pytest.mark.parametrize("spec", ["layers", "tensor", "zero:stage=3"])
def test_a_buffer_that_counts_calls_may_be_used_in_several_segments(spec):
    task = a_task(model=lambda: Counting().double(), data=(numbers(24, 4), numbers(24, 4, seed=1)))
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, spec, simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_a_pipeline_counts_micro_batches():
    task = a_task(model=lambda: Counting().double(), data=(numbers(24, 4), numbers(24, 4, seed=1)))
    run = pl.train(task, "pipeline:microbatches=2", simulated(2), steps=3)
    assert run.state["calls"] == 6
