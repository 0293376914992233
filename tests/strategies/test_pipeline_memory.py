"""The memory ledger of a pipeline: activations in flight for each order, and the effect of recomputation."""

import dataclasses
import itertools

import pytest
import torch
from conformance.cases import one_in
from segmented_models import task_of
from tasks import WORLDS, a_task, numbers, simulated
from torch import nn

import paceline as pl
from paceline.schedules.pipeline import pipeline_order
from paceline.testing.pipeline_timing import activations

STAGES, MICROBATCHES = 3, 6
CUTS = "cuts=1+2"
WAYS = {**WORLDS, "without mathematics": lambda workers: simulated(workers, math="none")}


def a_block(dropout=0.0, norm=False):
    middle = [nn.BatchNorm1d(32)] if norm else []
    return nn.Sequential(nn.Linear(8, 32), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 8))


class Block(nn.Module):
    """A layer that is not cut."""

    def __init__(self, **how):
        super().__init__()
        self.body = a_block(**how)

    def forward(self, x):
        return x + self.body(x)


def equal_stages(**changes):
    how = {name: changes.pop(name) for name in ("dropout", "norm") if name in changes}
    given = {
        "model": lambda: nn.Sequential(*(Block(**how) for _ in range(STAGES))).double(),
        "data": (numbers(24, 8), numbers(24, 8, seed=1)),
        "batch_size": 24,
        "optimizer": lambda params: torch.optim.Adam(params, lr=0.01),
    }
    return a_task(**given | changes)


def peaks(task, order, microbatches, cluster):
    spec = f"pipeline:order={order},microbatches={microbatches},{CUTS}"
    return [each["activations"] for each in pl.train(task, spec, cluster, steps=2).memory]


@pytest.mark.parametrize(
    ("order", "way"), one_in(5, itertools.product(["gpipe", "1f1b", "zb-h1", "zb-h2"], WAYS))
)
def test_a_stage_holds_as_many_micro_batches_as_its_order_keeps_in_flight(order, way):
    cluster = WAYS[way](STAGES)
    batch = 24 // MICROBATCHES
    one = peaks(equal_stages(batch_size=batch), "gpipe", 1, cluster)
    in_flight = activations(pipeline_order(order, STAGES, MICROBATCHES))
    expected = [count * nbytes for count, nbytes in zip(in_flight, one, strict=True)]
    assert peaks(equal_stages(), order, MICROBATCHES, cluster) == expected
    assert one[1] > 0


def test_a_rank_holds_its_stage_only():
    memory = pl.train(equal_stages(), f"pipeline:{CUTS}", simulated(STAGES), steps=2).memory
    whole = pl.train(equal_stages(), "single", simulated(1), steps=2).memory[0]
    stage = whole["parameters"] // STAGES
    assert [each["parameters"] for each in memory] == [stage] * STAGES
    assert [each["gradients"] for each in memory] == [stage] * STAGES
    assert [each["optimizer"] for each in memory] == [2 * stage] * STAGES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["perceptron", "resnet"])
def test_a_pipeline_without_mathematics_holds_what_one_with_it_holds(kind):
    for recompute in (False, True):
        task = task_of(kind, recompute=recompute)
        runs = [
            pl.train(task, "pipeline:microbatches=4", simulated(3, math=math), steps=2)
            for math in ("real", "none")
        ]
        assert runs[0].memory == runs[1].memory


# Recomputation


SPECS = [
    "layers:cuts=1+2",
    f"pipeline:order=1f1b,{CUTS},microbatches=4",
    f"pipeline:order=zb-h1,{CUTS},microbatches=4",
]


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", SPECS)
def test_recomputation_gives_the_same_bits_with_dropout_and_batch_norm(spec, world):
    runs = [
        pl.train(equal_stages(dropout=0.3, norm=True, recompute=again), spec, WORLDS[world](STAGES), steps=3)
        for again in (False, True)
    ]
    for name, tensor in runs[0].state.items():
        assert torch.equal(tensor, runs[1].state[name]), name
    assert [record.loss for record in runs[0].history] == [record.loss for record in runs[1].history]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "resnet", "encoder"])
def test_recomputation_gives_the_same_bits_in_a_model_that_is_traced(kind):
    task = task_of(kind, **({"dropout": 0.2} if kind == "gpt" else {}))
    runs = [
        pl.train(dataclasses.replace(task, recompute=again), "pipeline:microbatches=2", simulated(2), steps=2)
        for again in (False, True)
    ]
    for name, tensor in runs[0].state.items():
        assert torch.equal(tensor, runs[1].state[name]), name


@pytest.mark.parametrize("way", WAYS)
def test_recomputation_keeps_the_inputs_in_flight_and_the_values_of_one_micro_batch(way):
    cluster = WAYS[way](STAGES)
    plain, again = (
        peaks(equal_stages(recompute=each), "gpipe", MICROBATCHES, cluster) for each in (False, True)
    )
    middle = 1  # it is given values from one stage, and gives others to the next
    given = 8 * 8 * (24 // MICROBATCHES)  # eight doubles of each sample
    one = plain[middle] // MICROBATCHES
    assert again[middle] == MICROBATCHES * given + (one - given)
    assert all(new < 0.6 * old for old, new in zip(plain, again, strict=True))


def test_a_recomputed_backward_takes_a_forward_more_in_virtual_time():
    times = pl.times.Phases("3ms", "4ms", "2ms")
    for order in ("1f1b", "zb-h1"):
        spec = f"pipeline:order={order},microbatches=1,{CUTS}"
        ideal = {"compute": times, "link": pl.Link.ideal(), "math": "none"}
        seconds = [
            pl.train(equal_stages(recompute=each), spec, simulated(STAGES, **ideal), steps=1).seconds
            for each in (False, True)
        ]
        assert seconds[1] - seconds[0] == pytest.approx(STAGES * 3e-3)
