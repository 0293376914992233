"""Random numbers of a dataset are the same in every world: they depend on seed, rank and step."""

import random
import time

import numpy as np
import pytest
import torch
from tasks import WORLDS, a_task, samples
from torch import nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.system.seeding import rng_preserved, seed_all


class Noisy(Dataset):
    """Samples with random noise at each fetch."""

    def __init__(self, *kinds):
        self.inputs, self.targets = samples()
        self.kinds = kinds

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        draws = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1).item()}
        noise = sum(draws[kind]() for kind in self.kinds)
        return self.inputs[number] + noise, self.targets[number]


def trained(world, *kinds, seed=0, **changes):
    return pl.train(a_task(data=Noisy(*kinds), **changes), "all-reduce", WORLDS[world](2), steps=4, seed=seed)


@pytest.mark.parametrize("kind", ["python", "numpy", "torch"])
def test_a_simulation_draws_what_processes_draw(kind):
    local, virtual = (trained(world, kind) for world in WORLDS)
    assert torch.equal(local.parameters, virtual.parameters)
    assert not torch.equal(trained("simulated").parameters, virtual.parameters)


@pytest.mark.parametrize("kind", ["python", "numpy", "torch"])
def test_two_simulations_draw_the_same_whatever_was_drawn_before(kind):
    with rng_preserved():
        seed_all(1)
        first = trained("simulated", kind)
        seed_all(2)
        assert torch.equal(trained("simulated", kind).parameters, first.parameters)


def test_the_callers_chance_is_left_as_it_was():
    with rng_preserved():
        seed_all(5)
        expected = random.random(), np.random.rand(), torch.rand(1).item()
        seed_all(5)
        trained("simulated", "python", "numpy", "torch", test=Noisy("numpy"), metric="mse")
        assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


@pytest.mark.parametrize("kind", ["python", "numpy", "torch"])
def test_every_evaluation_draws_the_same_test_samples(kind):
    """A model that does not learn: only different samples could change its metric."""
    still = {
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.0),
        "metric": "mse",
        "test": Noisy(kind),
    }
    found = {record.metric for world in WORLDS for record in trained(world, **still).history}
    assert len(found) == 1


class Dawdling(nn.Module):
    """There is time for an evaluation to begin between the seed of a gradient and its random draws."""

    def forward(self, inputs):
        if self.training:
            time.sleep(0.03)
        return inputs


def dawdling_metric(outputs, targets):
    time.sleep(0.06)  # so that a gradient draws in the middle of the evaluation, if there is no lock
    return outputs.mean().item()


def dropping():
    return nn.Sequential(nn.Linear(4, 16), Dawdling(), nn.Dropout(0.5), nn.Linear(16, 2)).double()


@pytest.mark.parametrize("spec", ["sync:placement=all", "sync:placement=worker"])
def test_a_rank_that_looks_at_the_model_while_it_computes_draws_the_same(spec):
    task = a_task(model=dropping, test=samples(), metric=dawdling_metric)
    local, virtual = (
        pl.train(task, spec, WORLDS[world](2), steps=5, evaluate_every=1) for world in ("local", "simulated")
    )
    assert torch.equal(local.parameters, virtual.parameters)
