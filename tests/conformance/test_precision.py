"""`Task(precision="bf16")` in every strategy: 16-bit products, float32 parameters, gradients and updates."""

from dataclasses import replace

import pytest
import torch
from conformance.cases import ASYNCHRONOUS, LOCAL, SPECS, one_in
from conformance.test_autocast import STEPS, the_task
from refusals import has, refused
from tasks import simulated
from torch import nn

import paceline as pl

BF16 = 2.0**-8
IN_MEMORY = {
    "local": lambda workers: pl.Local(workers=workers, threads=1),
    "simulated": lambda workers: pl.Simulated(workers=workers, link="shared-memory"),
}
"""Clusters in which ranks share memory, so that gradients are not rounded."""


def task_of(**changes):
    return the_task(precision="bf16", **changes)


@pytest.mark.parametrize("world", IN_MEMORY)
def test_in_shared_memory_the_bits_are_those_of_autocast(world):
    found = pl.train(task_of(), "all-reduce", IN_MEMORY[world](2), steps=STEPS)
    with torch.autocast("cpu", torch.bfloat16):
        expected = pl.train(the_task(), "all-reduce", IN_MEMORY[world](2), steps=STEPS)
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


LINK = pl.Link("1Gbps", "10us")


@pytest.mark.parametrize(
    ("spec", "share"),
    [
        ("all-reduce", 0.5),
        ("all-reduce:algorithm=recursive-doubling", 1.0),  # ranks would round sums separately
        ("hybrid:data=4", 0.5),
        ("hybrid:data=2,tensor=2", None),
        ("map-reduce", 0.75),  # parameters have 32 bits
        ("sync", 0.75),
        ("async", 0.75),
        ("zero:stage=1", 0.75),
        ("zero:stage=2", 0.75),
        ("decentralized", 1.0),
    ],
)
def test_gradients_have_16_bits_on_links(spec, share):
    where = pl.Simulated(workers=4, link=LINK)
    half, full = (pl.train(task, spec, where, steps=STEPS) for task in (task_of(), the_task()))
    if share is not None:
        assert sum(half.bytes_sent) / sum(full.bytes_sent) == pytest.approx(share, abs=0.02)
    if spec not in ("async", "decentralized"):
        single = pl.train(task_of(), "single", simulated(1), steps=STEPS).parameters
        assert torch.linalg.vector_norm(half.parameters - single) < BF16 * torch.linalg.vector_norm(single)


def test_a_codec_of_the_strategy_replaces_that_of_the_precision():
    where = pl.Simulated(workers=2, link=LINK)
    plain, coded, int8 = (
        pl.train(task_of(), spec, where, steps=2)
        for spec in ("all-reduce", "all-reduce:codec=bf16", "all-reduce:codec=int8")
    )
    assert torch.equal(plain.parameters, coded.parameters)
    assert sum(int8.bytes_sent) < sum(plain.bytes_sent)


def test_tcp_and_simulated_links_give_the_same_bits():
    runs = [
        pl.train(task_of(), "zero:stage=2", where, steps=STEPS)
        for where in (pl.Local(workers=2, link="tcp", threads=1), pl.Simulated(workers=2, link=LINK))
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].bytes_sent == runs[1].bytes_sent


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
