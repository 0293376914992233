"""`Task(sync_batch_norm=True)`: BatchNorm of all workers together, which gives the weights of `single`."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from conformance.cases import WORKERS, one_in
from refusals import has, refused
from tasks import WORLDS, simulated
from torch import nn
from torch.nn import functional

import paceline as pl
from paceline.errors import RunError
from paceline.testing.tasks import make_task, samples

SPECS = [
    "single",
    "all-reduce",
    "all-reduce:algorithm=ring",
    "map-reduce",
    "sync:servers=2",
    "sync:placement=worker",
    "central-storage",
    "zero:stage=1",
    "zero:stage=2",
    "zero:stage=3",
]
IN_SIMULATION = itertools.product(SPECS, WORKERS, ["simulated"])
IN_PROCESSES = [(spec, 2 + number % 2, "local") for number, spec in enumerate(SPECS[1:])]
STEPS = 5  # of 9, 9, 9, 2 and 9 samples: the fourth leaves some of four workers without any


class NormAndActivation(nn.BatchNorm2d):
    """A BatchNorm with a forward pass of its own, as in other packages."""

    def forward(self, x):
        normal = functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training
        )
        return functional.relu(normal, inplace=True)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.first, self.second = NormAndActivation(4), nn.BatchNorm2d(4, momentum=None)
        self.blocks = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8, affine=False), nn.Tanh())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.first(self.lift(x.view(-1, 1, 2, 2)))
        h = h + self.second(h)
        return self.head(self.blocks(h.flatten(1)))


def normalised(**changes):
    given = {"model": lambda: Residual().double(), "data": samples(29), "batch_size": 9}
    return make_task(optimizer="momentum", **(given | changes))


def shared(**changes):
    return normalised(sync_batch_norm=True, **changes)


@cache
def expected():
    return pl.train(normalised(), "single", simulated(1), steps=STEPS)


def assert_equal(run, other):
    torch.testing.assert_close(run.parameters, other.parameters, rtol=0, atol=1e-12)
    for name, tensor in other.state.items():
        torch.testing.assert_close(run.state[name], tensor, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("spec", "workers", "world"), one_in(5, [*IN_SIMULATION, *IN_PROCESSES]))
def test_weights_and_statistics_are_those_of_single(spec, workers, world):
    assert_equal(pl.train(shared(), spec, WORLDS[world](workers), steps=STEPS), expected())


def test_without_it_they_are_not():
    run = pl.train(normalised(drop_last=True), "all-reduce", simulated(3), steps=2)
    other = pl.train(shared(drop_last=True), "all-reduce", simulated(3), steps=2)
    assert not torch.allclose(run.parameters, other.parameters, atol=1e-6)


@pytest.mark.parametrize("changes", [{"recompute": True}, {"clip_norm": 0.1}, {"ema": 0.9}])
@pytest.mark.parametrize("spec", ["all-reduce", pytest.param("zero:stage=3", marks=pytest.mark.slow)])
def test_they_are_also_with(spec, changes):
    alone = {name: value for name, value in changes.items() if name != "recompute"}
    one = pl.train(normalised(**alone), "single", simulated(1), steps=3)
    assert_equal(pl.train(shared(**changes), spec, simulated(3), steps=3), one)


def test_a_simulation_without_computation_sends_the_same_messages_at_the_same_times():
    cluster = simulated(3, compute=pl.times.Constant(0.1))
    real, shapes = (
        pl.train(shared(), "all-reduce", replace(cluster, math=math), steps=3) for math in ("real", "none")
    )
    assert real.messages_sent == shapes.messages_sent
    assert real.bytes_sent == shapes.bytes_sent
    assert real.seconds == shapes.seconds


def test_the_same_seed_gives_the_same_bits_in_both_worlds():
    real, virtual = (pl.train(shared(), "all-reduce", WORLDS[world](2), steps=3) for world in WORLDS)
    assert torch.equal(real.parameters, virtual.parameters)


class Branching(nn.Module):
    """Calls one of two layers, depending on the first sample."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.one(x) if x[0, 0] > 0 else self.other(x))


def test_workers_that_call_different_layers_are_told_so():
    with pytest.raises(RunError, match=r"1.*2|2.*1"):
        pl.train(shared(model=lambda: Branching().double()), "all-reduce", simulated(2), steps=6)


@pytest.mark.parametrize(
    "spec", ["async", "k-sync:k=2", "local-sgd", "decentralized", "fedavg", "pipeline", "hybrid:pipeline=2"]
)
def test_strategies_without_whole_batches_are_refused(spec):
    with refused("sync_batch_norm", has(spec)):
        pl.train(shared(), spec, simulated(4), steps=1)


def test_what_leaves_nothing_to_share_is_refused():
    with refused("accumulate", 2):
        shared(accumulate=2)
    with refused("sync_batch_norm", "yes"):
        normalised(sync_batch_norm="yes")
    with refused("sync_batch_norm", "Sequential"):
        pl.train(make_task(sync_batch_norm=True), "all-reduce", simulated(2), steps=1)
    with refused("sync_batch_norm"):
        pl.train(shared(), "zero", simulated(2, math="none", compute=pl.times.Constant(0.1)), steps=1)
