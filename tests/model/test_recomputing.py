"""Recomputation where a rank holds the whole model."""

import dataclasses

import pytest
import torch
from refusals import has, refused
from segmented_models import task_of
from tasks import WORLDS, a_task, numbers, simulated
from torch import nn

import paceline as pl


def chain(*middle, layers=6):
    rows = (layer() for _ in range(layers) for layer in (lambda: nn.Linear(4, 4), *middle))
    return nn.Sequential(*rows, nn.Linear(4, 2)).double()


class Blocks(nn.Module):
    """Blocks of other kinds of values: one takes a keyword and gives two values, one hands its input on."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, *, scale):
            return self.layer(x) * scale, None

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Two(), self.Two()])
        self.rest = nn.ModuleList([nn.Identity()])
        self.head = nn.Linear(4, 2)
        self.head.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self, x):
        for block in self.blocks:
            x, _ = block(x, scale=2.0)
        return self.head(self.rest[0](x))


MODELS = {
    "dropout": lambda: chain(nn.GELU, lambda: nn.Dropout(0.3)),
    "batch norm": lambda: chain(lambda: nn.BatchNorm1d(4), nn.Tanh),
    "in place": lambda: chain(lambda: nn.ReLU(inplace=True)),
    "blocks": lambda: Blocks().double(),
}


def runs_of(task, spec, cluster):
    return [
        pl.train(dataclasses.replace(task, recompute=again), spec, cluster, steps=3)
        for again in (False, True)
    ]


def check_same_bits(plain, again):
    for name, tensor in plain.state.items():
        assert torch.equal(tensor, again.state[name]), name


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_the_same_bits(name):
    check_same_bits(*runs_of(a_task(model=MODELS[name]), "all-reduce", simulated(2)))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["sync", "local-sgd:period=2"])
def test_it_gives_the_same_bits_with_any_strategy(spec, world):
    task = a_task(model=MODELS["dropout"], accumulate=2)
    check_same_bits(*runs_of(task, spec, WORLDS[world](2)))


@pytest.mark.parametrize("kind", ["gpt", "resnet", "encoder"])
def test_a_model_of_blocks_keeps_less(kind):
    for math in ("real", "none"):
        plain, again = runs_of(task_of(kind), "all-reduce", simulated(2, math=math))
        assert again.memory[0]["activations"] < 0.7 * plain.memory[0]["activations"]
    assert again.memory[0]["parameters"] == plain.memory[0]["parameters"]


def test_it_keeps_what_blocks_are_given_and_the_values_of_the_largest():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 32), nn.Linear(32, 4)

        def forward(self, x):
            return self.down(self.up(x).sin())

    task = a_task(
        model=lambda: nn.Sequential(*(Wide() for _ in range(5))).double(), data=(numbers(24, 4),) * 2
    )
    plain, again = (run.memory[0]["activations"] for run in runs_of(task, "single", simulated(1)))
    samples = 8
    given, values, loss = 8 * samples * 4, 8 * samples * 2 * 32, 2 * 8 * samples * 4
    assert plain == 5 * (given + values) + loss
    assert again == 5 * given + values + loss


def test_a_model_without_blocks_is_refused():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2).double()

        def forward(self, x):
            return self.layer(x)

    with refused("recompute", "Plain"):
        pl.train(a_task(model=Plain, recompute=True), "all-reduce", simulated(2), steps=1)


def test_a_block_that_uses_what_is_not_its_own_is_refused():
    class Secret(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.layer, self.others = nn.Linear(4, 4), [other]

        def forward(self, x):
            return self.layer(x) * self.others[0].weight.sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.blocks = nn.ModuleList([Secret(self.head)])

        def forward(self, x):
            return self.head(self.blocks[0](x))

    with refused("recompute"):
        pl.train(a_task(model=lambda: Model().double(), recompute=True), "single", simulated(1), steps=1)


def test_a_model_that_is_compiled_is_refused():
    with refused("recompute", True, bound=has("compile=True")):
        a_task(recompute=True, compile=True)
    with refused("recompute", 1):
        a_task(recompute=1)


class Stack(nn.Module):
    """A module with a list of blocks, within a list of other modules."""

    def __init__(self, blocks=6):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4)) for _ in range(blocks)
        )
        for number in range(blocks):
            self.blocks[number] = Residual(self.blocks[number])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


def nested(kind):
    blocks = Stack() if kind == "module" else nn.Sequential(*Stack().blocks)
    return nn.Sequential(nn.Linear(4, 4), blocks, nn.LayerNorm(4), nn.Linear(4, 2)).double()


@pytest.mark.parametrize("kind", ["module", "list"])
def test_blocks_within_a_layer_of_a_list_are_recomputed_one_by_one(kind):
    task = a_task(model=lambda: nested(kind))
    plain, again = runs_of(task, "all-reduce", simulated(2))
    check_same_bits(plain, again)
    assert again.memory[0]["activations"] < plain.memory[0]["activations"] / 2
    shapes = runs_of(task, "all-reduce", simulated(2, math="none"))
    assert [run.memory for run in shapes] == [plain.memory, again.memory]


@pytest.mark.parametrize("spec", ["all-reduce", "hybrid:data=2,pipeline=1,microbatches=1"])
def test_recomputation_of_a_gpt_stores_about_one_input_per_block(spec):
    """Korthikanti et al., arXiv 2205.05198: full recomputation stores 2 s b h bytes for each block."""
    sizes = {"layers": 24, "hidden": 2304, "heads": 24, "sequence": 2048, "vocabulary": 512, "batch_size": 2}
    task = pl.models.GPT(**sizes, dtype=torch.bfloat16)
    cluster = pl.Simulated(workers=2, math="none", device="A100")
    (plain, again) = (
        pl.train(dataclasses.replace(task, recompute=each), spec, cluster, steps=1).memory[0]["activations"]
        for each in (False, True)
    )
    inputs = 24 * 2 * 2048 * 2304
    assert inputs < again < inputs + 2 * plain / 24
