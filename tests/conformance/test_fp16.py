"""`Task(precision="fp16")` in every strategy: products in float16, and a loss scale."""

import pytest
import torch
from conformance.cases import ASYNCHRONOUS, LOCAL, SPECS, one_in
from conformance.test_autocast import STEPS, the_task
from conformance.test_precision import IN_MEMORY
from refusals import has, refused
from tasks import simulated
from torch import nn

import paceline as pl
from paceline.errors import GradientNotFiniteError

FP16 = 2.0**-10


def task_of(factor=0.05, **changes):
    """A task whose loss is multiplied by `factor`. With 0.05, no gradient overflows at the first scale."""

    def loss(outputs, targets):
        return factor * nn.functional.mse_loss(outputs, targets)

    def optimizer(params):
        return torch.optim.SGD(params, lr=0.1 / factor, momentum=0.9)

    return the_task(**({"precision": "fp16", "loss": loss, "optimizer": optimizer} | changes))


def distance(one, other):
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))


@pytest.mark.parametrize("spec", one_in(4, zip(SPECS)))
def test_every_strategy_trains_in_fp16_with_parameters_in_fp32(spec):
    run = pl.train(task_of(), spec, simulated(3), steps=STEPS)
    assert run.parameters.dtype == torch.float32
    assert torch.isfinite(run.parameters).all()
    if spec.partition(":")[0] not in ASYNCHRONOUS | LOCAL:
        single = pl.train(task_of(), "single", simulated(1), steps=STEPS).parameters
        assert distance(run.parameters, single) < FP16


@pytest.mark.parametrize(
    "spec",
    [
        "all-reduce",
        "zero:stage=1",
        "zero:stage=2",
        "pipeline:microbatches=2",
        "hybrid:data=2,pipeline=2,microbatches=2",
    ],
)
def test_every_rank_skips_the_same_updates(spec):
    run = pl.train(task_of(factor=64.0), spec, simulated(4), steps=30)
    assert len(run.skipped) == 4
    assert run.skipped[0] > 3
    assert len(set(run.skipped)) == 1
    single = pl.train(task_of(factor=64.0), "single", simulated(1), steps=30)
    assert distance(run.parameters, single.parameters) < 1  # the learning rate is for a loss of this size
    assert run.loss < run.history[0].loss


@pytest.mark.parametrize("spec", ["all-reduce", "zero:stage=1", "sync", "map-reduce"])
def test_an_overflow_is_not_lost_on_a_link(spec):
    where = pl.Simulated(workers=3, link=pl.Link("1Gbps", "10us"))
    run = pl.train(task_of(factor=64.0), spec, where, steps=30)
    assert sum(run.skipped) > 3
    assert torch.isfinite(run.parameters).all()


@pytest.mark.parametrize("spec", ["sync", "async", "local-sgd:period=2", "decentralized", "hogwild"])
def test_gradients_that_are_not_finite_are_never_applied(spec):
    run = pl.train(task_of(factor=64.0), spec, simulated(3), steps=30)
    assert sum(run.skipped) > 3
    assert torch.isfinite(run.parameters).all()


def test_a_skipped_update_changes_nothing():
    start, skipped = (pl.train(task_of(factor=1e3), "single", simulated(1), steps=n) for n in (1, 2))
    assert skipped.skipped == [2]
    assert torch.equal(start.parameters, skipped.parameters)


def test_without_an_overflow_nothing_is_skipped_and_small_gradients_are_not_lost():
    """Gradients of this size are zero in float16."""
    tiny = {"factor": 1e-6}
    scaled = pl.train(task_of(**tiny), "all-reduce", simulated(2), steps=STEPS)
    plain = pl.train(task_of(**tiny, precision="fp32"), "all-reduce", simulated(2), steps=STEPS)
    assert scaled.skipped == []
    assert distance(scaled.parameters, plain.parameters) < FP16
    with torch.autocast("cpu", torch.float16):
        lost = pl.train(task_of(**tiny, precision="fp32"), "all-reduce", simulated(2), steps=STEPS)
    assert distance(lost.parameters, plain.parameters) > 10 * FP16


@pytest.mark.parametrize("spec", ["all-reduce", pytest.param("zero:stage=2", marks=pytest.mark.slow)])
def test_processes_and_simulation_give_the_same_bits(spec):
    runs = [pl.train(task_of(factor=64.0), spec, make(2), steps=12) for make in IN_MEMORY.values()]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].skipped == runs[1].skipped != []


@pytest.mark.parametrize("spec", ["all-reduce", "pipeline", "async"])
def test_a_scale_below_one_is_an_error_that_names_layer_and_step(spec):
    def loss(outputs, targets):
        return outputs.float().sum() * 1e7

    task = task_of(loss=loss)
    with pytest.raises(GradientNotFiniteError) as raised:
        pl.train(task, spec, simulated(2), steps=200)
    assert raised.value.parameter in ("3.weight", "3.bias")
    assert 16 <= raised.value.step < 40  # each gradient halves the scale; the workers of async take turns
    assert raised.value.scale < 1


@pytest.mark.parametrize("spec", ["all-reduce", "zero:stage=2", "sync"])
def test_a_resumed_run_has_the_same_scale(spec, tmp_path):
    task, options = task_of(factor=64.0), {"checkpoint": tmp_path, "checkpoint_every": 2}
    whole = pl.train(task, spec, simulated(2), steps=16)
    pl.train(task, spec, simulated(2), steps=4, **options)
    run = pl.train(task, spec, simulated(2), steps=16, resume="must", **options)
    assert torch.equal(run.parameters, whole.parameters)
    assert run.skipped == whole.skipped != []


def test_a_run_resumed_with_other_ranks_keeps_the_scale(tmp_path):
    task, options = task_of(factor=64.0), {"checkpoint": tmp_path, "checkpoint_every": 2}
    pl.train(task, "pipeline", simulated(2), steps=12, **options)
    run = pl.train(task, "pipeline", simulated(3), steps=14, resume="must", **options)
    assert set(run.skipped) == {pl.train(task, "pipeline", simulated(2), steps=14).skipped[0]}


def test_a_saved_run_has_the_skipped_updates(tmp_path):
    run = pl.train(task_of(factor=64.0), "all-reduce", simulated(2), steps=6)
    run.save(tmp_path)
    assert pl.Run.load(tmp_path).skipped == run.skipped != []


def test_what_cannot_be_computed_in_fp16_is_refused():
    with refused("precision", "fp16", bound=has("torch.float64")):
        pl.train(task_of(model=lambda: nn.Linear(4, 2).double()), "single", simulated(1), steps=1)
    for codec in ("fp16", "int8", "topk-0.1"):
        with refused("codec", codec, bound=has("fp16")):
            pl.train(task_of(), f"all-reduce:codec={codec}", simulated(2), steps=1)
    for order in ("pipedream", "pipedream-2bw"):
        with refused("precision", "fp16", bound=has(order)):
            pl.train(task_of(), f"pipeline:order={order}", simulated(2), steps=1)
    pl.train(task_of(), "diloco:codec=int8", simulated(2), steps=2)  # it encodes no gradients
