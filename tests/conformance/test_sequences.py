"""Strategies that split sequences give the weights of `single`, tested with models of sequences."""

import itertools

import pytest
import torch
from conformance.cases import OPTIMIZERS, PARTING_SEQUENCES, one_in
from segmented_models import gpt_task
from tasks import simulated
from tensor_models import encoder_task, language_task
from torch.optim.lr_scheduler import LambdaLR

import paceline as pl
from paceline.testing.checks import check_close

VOCABULARY = {
    "tokens": "vocabulary",
    "head": "column",
    "block.gate": "column",
    "block.up": "column",
    "block.down": "row",
}
UPDATES = {"clip_norm": 0.05, "schedule": lambda made: LambdaLR(made, lambda step: 0.7**step)}


def check(task, spec, workers, steps=4):
    expected = pl.train(task, "single", simulated(1), steps=steps)
    run = pl.train(task, spec, simulated(workers), steps=steps)
    check_close(run.parameters, expected.parameters)
    assert [r.loss for r in run.history] == pytest.approx([r.loss for r in expected.history], rel=1e-12)
    assert [r.samples for r in run.history] == [r.samples for r in expected.history]


@pytest.mark.parametrize(
    ("optimizer", "size", "plan"), one_in(7, itertools.product(OPTIMIZERS, (1, 2, 3), (None, VOCABULARY)))
)
def test_any_size_gives_the_weights_of_single(optimizer, size, plan):
    """Four batches of seven and one of three: the last is uneven."""
    task = language_task(optimizer=OPTIMIZERS[optimizer], batch_size=7, tensor_plan=plan, **UPDATES)
    check(task, "tensor:sequence=true", size, steps=5)


# Not with Adam: the gradients of the keys' biases are only rounding errors, but Adam takes full steps with them.
@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_own_transformer_does_so_on_four_workers_dropout_included(norm_first):
    task = encoder_task(
        dropout=0.2, length=4, norm_first=norm_first, optimizer=OPTIMIZERS["momentum"], **UPDATES
    )
    check(task, "tensor:sequence=true", 4)


TASKS = {
    "gpt": lambda: gpt_task(optimizer=OPTIMIZERS["momentum"], batch_size=7, **UPDATES),
    "vocabulary": lambda: language_task(
        tied=True,
        dropout=0.0,
        tensor_plan=VOCABULARY,
        optimizer=OPTIMIZERS["adam"],
        batch_size=7,
        **UPDATES,
    ),
}


@pytest.mark.parametrize(("spec", "kind"), one_in(7, itertools.product(PARTING_SEQUENCES, TASKS)))
def test_a_mesh_of_any_kind_does_so_too(spec, kind):
    check(TASKS[kind](), spec, 4)


def test_two_groups_share_a_batch_of_one_sample():
    check(language_task(batch_size=1, **UPDATES), "tensor:size=2,sequence=true", 4, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["shared-memory", "tcp"])
@pytest.mark.parametrize("spec", ["tensor:sequence=true", "hybrid:pipeline=1,tensor=2,sequence=true"])
def test_processes_and_simulation_give_the_same_bits(spec, link):
    for task in (gpt_task(dropout=0.2, clip_norm=0.1), language_task(tensor_plan=VOCABULARY)):
        real = pl.train(task, spec, pl.Local(workers=2, threads=1, link=link), steps=3)
        virtual = pl.train(task, spec, simulated(2), steps=3)
        assert torch.equal(real.parameters, virtual.parameters)
        assert [record.loss for record in real.history] == [record.loss for record in virtual.history]


@pytest.mark.slow
def test_workers_of_ray_give_the_same_bits():
    pytest.importorskip("ray")
    task = language_task(tensor_plan=VOCABULARY)
    real = pl.train(task, "tensor:sequence=true", pl.Ray(workers=2, threads=1), steps=3)
    virtual = pl.train(task, "tensor:sequence=true", simulated(2), steps=3)
    assert torch.equal(real.parameters, virtual.parameters)


@pytest.mark.parametrize(
    ("spec", "workers"),
    one_in(3, [("tensor:sequence=true", 3), ("single", 1), ("tensor", 2), ("tensor:sequence=true", 2)]),
)
def test_a_run_goes_on_with_another_size(spec, workers, tmp_path):
    task = language_task(optimizer=OPTIMIZERS["adam"], tensor_plan=VOCABULARY)
    expected = pl.train(task, "single", simulated(1), steps=4)
    kept = {"checkpoint": tmp_path, "checkpoint_every": 2}
    pl.train(task, "tensor:sequence=true", simulated(2), steps=2, **kept)
    run = pl.train(task, spec, simulated(workers), steps=4, resume="must", **kept)
    check_close(run.parameters, expected.parameters)
