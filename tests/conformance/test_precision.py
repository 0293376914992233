"""`Task(precision="bf16")` in every strategy: 16-bit products, float32 parameters, gradients and updates."""

from dataclasses import replace

import pytest
import torch
from conformance.cases import ASYNCHRONOUS, LOCAL, SPECS, one_in
from conformance.test_autocast import STEPS, the_task
from refusals import has, refused
from tasks import WORLDS, simulated
from torch import nn

import paceline as pl

BF16 = 2.0**-8


def task_of(**changes):
    return the_task(precision="bf16", **changes)


@pytest.mark.parametrize("world", WORLDS)
def test_the_bits_are_those_of_autocast(world):
    found = pl.train(task_of(), "all-reduce", WORLDS[world](2), steps=STEPS)
    with torch.autocast("cpu", torch.bfloat16):
        expected = pl.train(the_task(), "all-reduce", WORLDS[world](2), steps=STEPS)
    assert torch.equal(found.parameters, expected.parameters)
    assert found.environment["autocast"] == "cpu bfloat16"


@pytest.mark.parametrize("spec", one_in(4, zip(SPECS)))
def test_every_strategy_trains_in_bf16_with_parameters_in_fp32(spec):
    run = pl.train(task_of(), spec, simulated(3), steps=STEPS)
    assert run.parameters.dtype == torch.float32
    assert torch.isfinite(run.parameters).all()
    if spec.partition(":")[0] not in ASYNCHRONOUS | LOCAL:
        single = pl.train(task_of(), "single", simulated(1), steps=STEPS).parameters
        assert torch.linalg.vector_norm(run.parameters - single) < BF16 * torch.linalg.vector_norm(single)


def test_bf16_changes_the_weights():
    plain, rounded = (pl.train(task, "single", simulated(1), steps=STEPS) for task in (the_task(), task_of()))
    assert not torch.equal(plain.parameters, rounded.parameters)


def test_fp32_is_the_default_and_changes_no_bit():
    plain = pl.train(the_task(), "all-reduce", simulated(2), steps=STEPS)
    named = pl.train(the_task(precision="fp32"), "all-reduce", simulated(2), steps=STEPS)
    assert torch.equal(plain.parameters, named.parameters)
    assert "autocast" not in named.environment


def test_activations_between_stages_have_16_bits():
    def model():
        return nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 2))

    sent = [
        pl.train(the_task(model=model, precision=precision), "layers", simulated(2), steps=1).bytes_sent[0]
        for precision in ("fp32", "bf16")
    ]
    assert sent[0] - sent[1] == 8 * 64 * 2  # 8 samples of 64 values, two bytes less each


def test_updates_too_small_for_bf16_accumulate():
    def model():
        made = nn.Sequential(nn.Linear(4, 2, bias=False))
        nn.init.ones_(made[0].weight)
        return made

    tiny = task_of(model=model, optimizer=lambda params: torch.optim.SGD(params, lr=1e-5))
    moved = pl.train(tiny, "all-reduce", simulated(2), steps=STEPS).parameters - 1
    assert moved.abs().max() > 0
    assert moved.abs().max() < BF16 / 4


def test_what_cannot_be_computed_in_bf16_is_refused():
    with refused("precision", "bf16", bound=has("torch.float64")):
        pl.train(task_of(model=lambda: nn.Linear(4, 2).double()), "single", simulated(1), steps=1)
    with refused("precision", "bf16"), torch.autocast("cpu", torch.bfloat16):
        pl.train(task_of(), "single", simulated(1), steps=1)
    priced = pl.Simulated(workers=2, math="none", device=pl.devices.A100)
    with refused("precision", "bf16"):
        pl.train(task_of(), "all-reduce", priced, steps=1)
    with refused("precision", "bf16"):
        pl.predict(task_of(), "all-reduce", priced)


@pytest.mark.parametrize("precision", ["fp8", "double", None])
def test_another_precision_is_refused(precision):
    with refused("precision", str(precision)):
        replace(task_of(), precision=precision)


def test_a_run_is_resumed_with_the_same_precision_only(tmp_path):
    options = {"checkpoint": tmp_path, "checkpoint_every": 1}
    pl.train(task_of(), "all-reduce", simulated(2), steps=2, **options)
    with refused("checkpoint"):
        pl.train(the_task(), "all-reduce", simulated(2), steps=4, resume="must", **options)
    run = pl.train(task_of(), "all-reduce", simulated(2), steps=4, resume="must", **options)
    whole = pl.train(task_of(), "all-reduce", simulated(2), steps=4)
    assert torch.equal(run.parameters, whole.parameters)
