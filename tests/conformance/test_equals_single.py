"""Every synchronous strategy, on any number of workers, in any world, gives the weights of `single`."""

import itertools

import pytest
import torch
from conformance.cases import (
    CASES,
    LINEAR,
    MESHES,
    OPTIMIZERS,
    STEPS,
    SYNCHRONOUS,
    WORKERS,
    in_turn,
    make_task,
    one_in,
    single,
    train_plainly,
)
from tasks import WORLDS, simulated

import paceline as pl
from paceline.testing.checks import check_close, check_weights_of_single
from paceline.testing.tasks import ABOUT_UPDATES, stream_task


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", CASES)
def test_single_gives_the_weights_of_a_plain_pytorch_loop(case, optimizer):
    expected, _ = train_plainly(make_task(case, optimizer))
    check_close(single(case, optimizer).parameters, expected)


@pytest.mark.parametrize(
    ("case", "spec", "workers"), one_in(13, itertools.product(CASES, SYNCHRONOUS, WORKERS))
)
def test_a_synchronous_strategy_gives_the_weights_of_single_in_simulation(case, spec, workers):
    optimizers = OPTIMIZERS if case in ABOUT_UPDATES else ["momentum"]
    for optimizer in optimizers:
        check_weights_of_single(spec, simulated(workers), case, optimizer)


@pytest.mark.parametrize(
    ("case", "spec", "workers"),
    one_in(11, [(case, *mesh) for case in CASES for mesh in MESHES]),
)
def test_a_mesh_whose_rows_share_its_pieces_gives_the_weights_of_single(case, spec, workers):
    for optimizer in OPTIMIZERS:
        check_weights_of_single(spec, simulated(workers), case, optimizer)


@pytest.mark.parametrize(
    ("spec", "workers", "case", "optimizer"),
    one_in(5, in_turn(itertools.product(SYNCHRONOUS, WORKERS), CASES, [*OPTIMIZERS, "momentum"])),
)
def test_a_synchronous_strategy_gives_the_weights_of_single_in_processes(spec, workers, case, optimizer):
    check_weights_of_single(spec, pl.Local(workers=workers), case, optimizer)


STREAMED = [
    *itertools.product(SYNCHRONOUS, WORKERS, ["simulated"]),
    *itertools.product(SYNCHRONOUS, [3], ["local"]),
]


@pytest.mark.parametrize(("spec", "workers", "world"), one_in(5, STREAMED))
def test_a_synchronous_strategy_gives_the_weights_of_single_on_a_stream(spec, workers, world):
    expected = pl.train(stream_task(), "single", simulated(1), steps=9)
    run = pl.train(stream_task(), spec, WORLDS[world](workers), steps=9)
    check_close(run.parameters, expected.parameters)


@pytest.mark.parametrize("spec", one_in(3, zip(SYNCHRONOUS)))
def test_fewer_samples_than_processes_give_the_weights_of_single(spec):
    check_weights_of_single(spec, pl.Local(workers=3), "fewer-samples-than-workers", "momentum")


@pytest.mark.parametrize(
    ("optimizer", "spec", "workers"), one_in(7, itertools.product(OPTIMIZERS, SYNCHRONOUS, WORKERS))
)
def test_single_precision_agrees_to_five_digits(optimizer, spec, workers):
    check_weights_of_single(spec, simulated(workers), "batch-not-divisible", optimizer, torch.float32)


@pytest.mark.parametrize(
    ("case", "spec", "workers"),
    one_in(5, itertools.product([case for case in CASES if case != "clipping"], LINEAR, WORKERS)),
)
def test_averages_after_every_step_give_the_weights_of_single_if_updates_are_linear(case, spec, workers):
    for optimizer in ("sgd", "momentum"):
        check_weights_of_single(spec, simulated(workers), case, optimizer)


@pytest.mark.parametrize("spec", LINEAR)
def test_averages_after_every_step_give_the_weights_of_single_in_processes(spec):
    check_weights_of_single(spec, pl.Local(workers=3), "fewer-samples-than-workers", "momentum")


@pytest.mark.parametrize("spec", LINEAR)
@pytest.mark.parametrize(("case", "optimizer"), [("plain", "adam"), ("clipping", "sgd")])
def test_averages_after_every_step_differ_from_single_if_updates_are_not_linear(case, optimizer, spec):
    run = pl.train(make_task(case, optimizer), spec, simulated(3), steps=STEPS)
    assert not torch.allclose(run.parameters, single(case, optimizer).parameters, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "case",
    ["clipping", "schedule", "param-groups", "dictionaries", "weights", "frozen-layer", "tied-weights"],
)
def test_the_case_makes_a_difference(case):
    changed, plain = single(case).parameters, single().parameters
    assert changed.shape != plain.shape or not torch.allclose(changed, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_small_buckets_are_summed_one_by_one(world):
    run = pl.train(make_task(), "all-reduce:algorithm=ring,bucket_mb=0.0001", WORLDS[world](2), steps=2)
    assert run.messages_sent == [2 * 3 * 2] * 2, (
        "two messages for each of three buckets, in each of two steps"
    )
