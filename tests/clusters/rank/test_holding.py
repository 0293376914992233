"""Descriptions of the part of the model that a rank holds."""

import pytest
from tasks import a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.clusters.rank.holding import what_is_held
from paceline.errors import PeerLost
from paceline.model.cutting.layers import Layers

HELD = {
    "layers:cuts=2+4+6": ["stage 0 of 4: layers 0 … 1", "stage 3 of 4: layer 6"],
    "pipeline:order=interleaved,stages=2,chunks=2,cuts=2+4+6": [
        "stages 0 and 2 of 4: layers 0 … 1 and 4 … 5",
        "stages 1 and 3 of 4: layers 2 … 3 and 6",
    ],
    "tensor": ["all layers, tensor part 0 of 4", "all layers, tensor part 3 of 4"],
    "zero:stage=3": ["all layers, shard 0 of 4", "all layers, shard 3 of 4"],
    "hybrid:pipeline=2,tensor=2,cuts=4": [
        "stage 0 of 2: layers 0 … 3, tensor part 0 of 2",
        "stage 1 of 2: layers 4 … 6, tensor part 1 of 2",
    ],
    "hybrid:pipeline=2,zero=3,cuts=4": [
        "stage 0 of 2: layers 0 … 3, shard 0 of 2",
        "stage 1 of 2: layers 4 … 6, shard 1 of 2",
    ],
    "all-reduce": [],
}


def model():
    layers = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(4, 2)).double()


@pytest.mark.parametrize("spec", HELD)
def test_a_run_says_what_each_rank_held(spec):
    run = pl.train(a_task(model=model), spec, simulated(2 if "stages=2" in spec else 4), steps=1)
    assert [*run.holds[:1], *run.holds[-1:]] == HELD[spec]


@pytest.mark.parametrize("spec", ["layers:cuts=2+4+6", "tensor", "zero:stage=3"])
def test_a_rank_that_is_killed_is_named_with_what_it_held(spec):
    cluster = simulated(4, faults=(pl.faults.Kill(3, step=1),))
    with pytest.raises(PeerLost) as caught:
        pl.train(a_task(model=model), spec, cluster, steps=3)
    assert str(caught.value).startswith(f"rank 3 ({HELD[spec][1]}) is lost (killed by pl.faults")


def test_who_holds_everything_is_not_told_of():
    task = a_task(model=model)
    cut = Layers.of(task, model(), tuple(each[:2] for each in samples())).cut(1)
    assert what_is_held(cut, [0]) == ""
    assert what_is_held(cut, []) == "no layers"
