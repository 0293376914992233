"""Every strategy uses the parameter groups of the whole model, for any way in which the optimizer's factory selects
them."""

import itertools

import pytest
import torch
from conformance.cases import one_in
from tasks import numbers
from torch import nn
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import LambdaLR

import paceline as pl
from paceline.testing.worlds import WORLDS, simulated

SPLIT = (
    "layers",
    "pipeline:stages=2",
    "pipeline:stages=2,chunks=2,order=interleaved,microbatches=4",
    "tensor:size=2",
    "tensor:size=4",
    "hybrid:data=2,pipeline=2",
    "hybrid:data=1,pipeline=2,tensor=2",
    "hybrid:data=2,pipeline=2,zero=1",
    "zero:stage=1",
    "zero:stage=2",
    "zero:stage=3",
)
"""Strategies in which no rank updates all parameters."""
WHOLE = ("all-reduce", "all-reduce:algorithm=shared", "sync:servers=2", "map-reduce", "central-storage")
STEPS = 4


class Mixed(nn.Module):
    """Layers that tensor parallelism splits, a frozen layer, and weights that two layers share."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.again = nn.Linear(4, 8)
        self.again.weight = self.up.weight
        self.last = nn.Linear(8, 2)
        for name, parameter in self.named_parameters():
            parameter.decays = name.endswith("weight")

    def forward(self, x):
        x = self.frozen(self.down(torch.tanh(self.up(x))))
        return self.last(torch.tanh(self.again(x)))


def perceptron():
    widths = [(4, 8), (8, 4), (4, 8), (8, 2)]
    return nn.Sequential(*(layer for pair in widths for layer in (nn.Linear(*pair), nn.Tanh())))


def two_rates(params):
    params = list(params)
    return SGD([{"params": params[:-2], "lr": 0.01}, {"params": params[-2:], "lr": 0.1}])


def three_kinds(params):
    """Groups with different options.

    One group has a single parameter, which most parts of the model do not contain.
    """
    params = list(params)
    groups = [
        {"params": params[::2], "weight_decay": 0.1},
        {"params": params[1:2], "momentum": 0.5, "nesterov": True},
        {"params": params[3::2], "lr": 0.01},
    ]
    return SGD(groups, lr=0.1, momentum=0.9)


def by_size(params):
    """A split matrix is smaller than this. A whole matrix is not."""
    large = [p for p in params if p.numel() >= 16]
    small = [p for p in params if p.numel() < 16]
    return Adam([{"params": large, "lr": 0.01}, {"params": small, "lr": 0.001}])


def by_name(model):
    named = dict(model.named_parameters())
    slow = [p for name, p in named.items() if name.endswith("bias")]
    ids = {id(p) for p in slow}
    return SGD(
        [{"params": slow, "lr": 0.01}, {"params": (p for p in named.values() if id(p) not in ids)}], lr=0.1
    )


def by_attribute(params):
    decays = [p for p in params if getattr(p, "decays", False)]
    others = [p for p in params if not getattr(p, "decays", False)]
    return SGD([{"params": decays, "weight_decay": 0.3}, {"params": others}] if decays else params, lr=0.1)


FACTORIES = {
    "two-rates": two_rates,
    "first-three": lambda p: SGD(list(p)[:3], lr=0.1, momentum=0.9),
    "last": lambda p: SGD(list(p)[-1:], lr=0.1),
    "three-kinds": three_kinds,
    "by-size": by_size,
    "by-name": by_name,
    "by-attribute": by_attribute,
    "generator": lambda p: SGD((each for each in p), lr=0.1, momentum=0.9),
    "state-at-once": lambda p: Adagrad(
        [{"params": p[:3], "initial_accumulator_value": 0.5}, {"params": p[3:]}], lr=0.1
    ),
    "fused": lambda p: Adam(p[1:], lr=0.01, fused=True),
}
COMMON = ("two-rates", "first-three")
others = itertools.cycle([name for name in FACTORIES if name not in COMMON])
PAIRS = [
    *itertools.product(COMMON, SPLIT),
    *((next(others), strategy) for strategy in SPLIT + WHOLE for _ in range(2)),
]
"""All factories with all strategies would take minutes, so the rarer factories are used in turn."""
MODELS = {"perceptron": perceptron, "mixed": Mixed}


def task_of(factory, model="mixed", **changes):
    given = {
        "model": lambda: MODELS[model]().double(),
        "data": (numbers(24, 4), numbers(24, 2, seed=1)),
        "loss": nn.functional.mse_loss,
        "optimizer": FACTORIES[factory],
        "batch_size": 8,
    }
    return pl.Task(**(given | changes))


def check_equals_single(task, strategy, cluster):
    expected = pl.train(task, "single", simulated(1), steps=STEPS).state
    found = pl.train(task, strategy, cluster, steps=STEPS).state
    far = {name: float((found[name] - value).abs().max()) for name, value in expected.items()}
    assert max(far.values()) < 1e-12, far


def cluster_for(strategy, world="simulated"):
    return WORLDS[world](4 if "hybrid" in strategy or "size=4" in strategy else 2)


@pytest.mark.parametrize(("factory", "strategy"), one_in(3, PAIRS))
def test_groups_are_those_of_the_whole_model(factory, strategy):
    check_equals_single(task_of(factory), strategy, cluster_for(strategy))


@pytest.mark.parametrize(
    ("strategy", "factory"), one_in(3, itertools.product(SPLIT, ["two-rates", "three-kinds"]))
)
def test_groups_of_a_perceptron_are_those_of_the_whole_model(factory, strategy):
    check_equals_single(task_of(factory, "perceptron"), strategy, cluster_for(strategy))


@pytest.mark.parametrize(
    ("strategy", "factory"),
    one_in(3, zip(SPLIT, itertools.cycle(["two-rates", "three-kinds", "first-three"]))),
)
def test_groups_are_those_of_the_whole_model_in_processes(factory, strategy):
    check_equals_single(task_of(factory), strategy, cluster_for(strategy, "local"))


@pytest.mark.parametrize("strategy", SPLIT)
def test_a_schedule_finds_the_groups_at_the_same_index_on_every_rank(strategy):
    rates = [lambda step: 0.5**step, lambda step: 1.0, lambda step: 1 / (1 + step)]
    by_index = task_of("three-kinds", schedule=lambda made: LambdaLR(made, rates))
    check_equals_single(by_index, strategy, cluster_for(strategy))


@pytest.mark.parametrize("strategy", SPLIT)
def test_gradients_of_parameters_without_an_optimizer_count_in_the_norm(strategy):
    check_equals_single(task_of("first-three", clip_norm=0.05), strategy, cluster_for(strategy))


@pytest.mark.parametrize("strategy", SPLIT)
def test_parameters_without_an_optimizer_are_not_changed(strategy):
    task = task_of("last")
    run = pl.train(task, strategy, cluster_for(strategy), steps=STEPS)
    before = task.build_model(0).state_dict()
    assert [name for name in before if not torch.equal(run.state[name], before[name])] == ["last.bias"]


@pytest.mark.parametrize("strategy", SPLIT)
def test_several_optimizers_select_in_their_own_parts(strategy):
    optimizers = {
        "up": lambda p: SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], lr=0.1),
        "down": lambda p: SGD(p[:1], lr=0.2),
        "again": lambda p: SGD(p[1:], lr=0.1, momentum=0.9),
        "last": lambda p: Adam(p, lr=0.01),
    }
    check_equals_single(task_of("last", optimizer=optimizers), strategy, cluster_for(strategy))


@pytest.mark.parametrize("factory", ["by-size", "by-attribute", "state-at-once", "fused"])
def test_a_factory_sees_the_whole_of_a_parameter_that_tensor_splits(factory):
    check_equals_single(task_of(factory, "perceptron"), "tensor:size=2", cluster_for("tensor"))
