"""Optimizers that need whole layers give the weights of `single`, however a model is split."""

import itertools
from dataclasses import replace

import pytest
import torch
from conformance.cases import MESHES, SYNCHRONOUS, WORKERS, make_task, one_in
from refusals import has, refused
from torch import nn

import paceline as pl
from paceline.testing.checks import check_close
from paceline.testing.worlds import WORLDS, simulated

OPTIMIZERS = {
    "lars": lambda params: pl.optim.LARS(params, 1.0, weight_decay=0.01, eta=0.1),
    "lamb": lambda params: pl.optim.LAMB(params, 0.05, weight_decay=0.01),
    "muon": lambda params: torch.optim.Muon(params, lr=0.05),
}
SPLIT = [
    ("tensor", 2),
    ("tensor", 3),
    ("tensor:size=2", 4),
    ("hybrid:tensor=2,microbatches=2", 4),
    ("hybrid:tensor=2,zero=1,microbatches=2", 4),
    ("hybrid:tensor=2,zero=2,microbatches=2", 4),
    ("hybrid:tensor=2,zero=3,microbatches=2", 4),
    ("hybrid:tensor=2,pipeline=2,microbatches=2", 4),
    ("hybrid:tensor=2,pipeline=2,zero=3,microbatches=2", 8),
]
WHOLE = [*itertools.product([spec for spec in SYNCHRONOUS if "tensor" not in spec], WORKERS[1:]), *MESHES]


def model(bias=True):
    sizes = (4, 6, 5, 3, 2)
    layers = [nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).double()


def task_of(name, **changes):
    given = {"model": lambda: model(bias=name != "muon"), "optimizer": OPTIMIZERS[name]}
    return replace(make_task("batch-not-divisible"), **(given | changes))


def check_equals_single(task, spec, cluster):
    expected = pl.train(task, "single", simulated(1), steps=4).parameters
    check_close(pl.train(task, spec, cluster, steps=4).parameters, expected)


@pytest.mark.parametrize(("name", "case"), one_in(23, itertools.product(OPTIMIZERS, WHOLE)))
def test_ranks_that_update_whole_layers_give_the_weights_of_single(name, case):
    spec, workers = case
    check_equals_single(task_of(name), spec, simulated(workers))


@pytest.mark.parametrize(("name", "case"), one_in(5, itertools.product(["lars", "lamb"], SPLIT)))
def test_ranks_that_hold_parts_of_layers_give_the_weights_of_single(name, case):
    spec, workers = case
    check_equals_single(task_of(name), spec, simulated(workers))
    check_equals_single(task_of(name, clip_norm=0.05), spec, simulated(workers))


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_processes_that_hold_parts_of_layers_give_the_weights_of_single(name):
    check_equals_single(task_of(name), "tensor", WORLDS["local"](2))


def test_groups_of_parameters_with_their_own_settings_are_split_too():
    def grouped(params):
        given = list(params)
        flat = {"params": [p for p in given if p.dim() == 1], "weight_decay": 0.0}
        wide = {"params": [p for p in given if p.dim() > 1], "eta": 0.2}
        return pl.optim.LARS([flat, wide], 1.0, weight_decay=0.01, eta=0.1)

    check_equals_single(
        task_of("lars", optimizer=grouped), "hybrid:tensor=2,zero=2,microbatches=2", simulated(4)
    )


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_the_state_of_split_layers_is_saved_and_restored(name, tmp_path):
    task, cluster = task_of(name), simulated(2)
    whole = pl.train(task, "tensor", cluster, steps=4)
    pl.train(task, "tensor", cluster, steps=2, checkpoint=tmp_path)
    resumed = pl.train(task, "tensor", cluster, steps=4, checkpoint=tmp_path, resume="must")
    assert torch.equal(resumed.parameters, whole.parameters)
    again = tmp_path / "again"
    pl.train(task, "tensor", cluster, steps=2, checkpoint=again)
    on_one = pl.train(task, "tensor", simulated(3), steps=4, checkpoint=again, resume="must")
    check_close(on_one.parameters, whole.parameters)


def test_norms_of_split_layers_are_few_bytes():
    """Two squares for each of 8 parameters, and a ring of two ranks sends half of a vector twice."""
    task = task_of("lars")
    sent = {
        name: pl.train(replace(task, optimizer=make), "tensor", simulated(2), steps=1).bytes_sent
        for name, make in (("lars", OPTIMIZERS["lars"]), ("sgd", lambda params: torch.optim.SGD(params, 0.1)))
    }
    assert [a - b for a, b in zip(sent["lars"], sent["sgd"], strict=True)] == [2 * 8 * 8, 2 * 8 * 8]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_needs_whole_layers_is_simulated_without_values(name):
    spec = "zero:stage=2" if name == "muon" else "tensor"
    run = pl.train(
        task_of(name), spec, pl.Simulated(workers=2, math="none", compute=pl.times.Constant(0.01)), steps=2
    )
    assert run.steps == 2
    assert all(memory["optimizer"] for memory in run.memory)


def test_an_optimizer_that_needs_whole_matrices_is_refused_where_they_are_split():
    with refused("optimizer", has("Muon"), bound=has("LARS")):
        pl.train(task_of("muon"), "tensor", simulated(2), steps=1)
