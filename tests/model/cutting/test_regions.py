"""Models with blocks under torch.no_grad and torch.autocast, sizes that are fixed, and caches. All equal `single`."""

from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from tasks import simulated
from torch import nn
from torch.nn import functional

import paceline as pl
from paceline.model.cutting.exporting import export
from paceline.model.cutting.parts import Arguments

SPLIT = ["layers", "pipeline:microbatches=2", "zero:stage=3", "tensor:size=2", "hybrid:zero=2"]


class Rotary(nn.Module):
    """Angles as in rotary position embeddings: without gradients, and in full precision under autocast."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("frequencies", 1.0 / 100 ** torch.arange(0, 1, 2 / width))

    @torch.no_grad()
    def forward(self, x):
        positions = torch.arange(x.shape[1])[:, None].to(self.frequencies.dtype)
        with torch.autocast("cpu", enabled=False):
            angles = positions * self.frequencies[None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Rotated(nn.Module):
    """Two linear layers around a rotation."""

    def __init__(self):
        super().__init__()
        self.rotary = Rotary(8)
        self.into, self.out = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        cos, sin = self.rotary(x)
        a, b = self.into(x).chunk(2, dim=-1)
        return self.out(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)).mean(1)


class Pooled(nn.Module):
    """A small image network with a head that needs images of one size."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        h = functional.avg_pool2d(torch.relu(self.second(torch.relu(self.first(x)))), 4)
        return self.head(h.view(h.size(0), -1))


class SpectralNorm(nn.Module):
    """Updates buffers in a block without gradients."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 5))
        self.second = nn.Linear(5, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def task(kind, inputs):
    return pl.Task(
        model=lambda: kind().double(),
        data=(inputs, numbers(len(inputs), 2)),
        loss=functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=8,
    )


TASKS = {
    "a rotary embedding": lambda: task(Rotated, numbers(24, 5, 3)),
    "a fixed image size": lambda: task(Pooled, numbers(24, 1, 8, 8)),
}


def weights(task, strategy, workers):
    return pl.train(task, strategy, simulated(workers), steps=4).parameters


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("strategy", SPLIT)
def test_a_split_model_gives_the_weights_of_single(kind, strategy):
    expected = weights(TASKS[kind](), "single", 1)
    torch.testing.assert_close(weights(TASKS[kind](), strategy, 2), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", ["layers", "tensor:size=2"])
def test_buffers_that_a_block_without_gradients_updates_are_those_of_single(strategy):
    """The whole batch in one pass: each pass updates these buffers."""
    make = lambda: task(SpectralNorm, numbers(24, 3))  # noqa: E731
    expected = weights(make(), "single", 1)
    torch.testing.assert_close(weights(make(), strategy, 2), expected, rtol=0, atol=1e-12)


def test_no_gradient_flows_through_a_block_without_gradients():
    class Stopped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            with torch.no_grad():
                scale = (x * self.weight).sum()
            return x * self.weight + scale

    module, x = Stopped(), torch.ones(5, 3)
    exported = export(module, Arguments((x,), {}), 5)
    (made,) = exported.graph_module(*(exported.fetcher(module, node)() for node in exported.state), x)
    made.sum().backward()
    torch.testing.assert_close(module.weight.grad, torch.full((3,), 5.0))


def test_a_batch_of_another_size_than_the_traced_one_is_refused():
    exported = export(Pooled(), Arguments((torch.zeros(5, 1, 8, 8),), {}), 5)
    exported.check_sizes([torch.zeros(2, 1, 8, 8)])
    with refused("data", (2, 1, 16, 16)):
        exported.check_sizes([torch.zeros(2, 1, 16, 16)])


def test_sequences_of_any_length_are_accepted_if_the_model_takes_them():
    exported = export(Rotated(), Arguments((torch.zeros(5, 6, 3),), {}), 5)
    exported.check_sizes([torch.zeros(2, 9, 3)])


class Cache:
    """Not a value that torch.export knows."""


class Cached(nn.Module):
    """Returns a cache unless its configuration says otherwise, as language models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, values, labels=None):
        outputs = self.second(torch.tanh(self.first(values)))
        found = {"loss": functional.mse_loss(outputs, labels), "logits": outputs}
        return found | ({"past_key_values": Cache()} if self.config.use_cache else {})


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"values": numbers(24, 3)[index], "labels": numbers(24, 2)[index]}


@pytest.mark.parametrize("strategy", SPLIT)
def test_a_model_that_returns_a_cache_is_traced_without_it(strategy):
    def make():
        return pl.Task(
            model=lambda: Cached().double(),
            data=Rows(),
            loss=None,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
            batch_size=8,
        )

    expected = weights(make(), "single", 1)
    torch.testing.assert_close(weights(make(), strategy, 2), expected, rtol=0, atol=1e-12)


def test_a_model_has_its_cache_again_after_it_was_traced():
    module = Cached()
    export(module, Arguments((torch.zeros(5, 3), torch.zeros(5, 2)), {}), 5)
    assert module.config.use_cache
