"""ZeRO with hooks: models that cannot be traced give the weights of `single`, and need as little memory."""

import itertools
import os
import random
import signal
import threading

import pytest
import torch
from conformance.cases import one_in
from deaths import deadly_once
from hooked_models import ROUNDED, TASKS, Looking, Routed, linears, task_of, tree
from refusals import refused
from segmented_models import gpt_task
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.errors import PeerLost, WorkerError
from paceline.testing.checks import check_close

STEPS = 4
WORLDS = {
    "messages": simulated,
    "memory": lambda workers: pl.Simulated(
        workers=workers, compute=pl.times.Constant("1ms"), link="shared-memory"
    ),
    "local": lambda workers: pl.Local(workers=workers, threads=1),
    "tcp": lambda workers: pl.Local(workers=workers, link="tcp", threads=1),
}
VIRTUAL, REAL = ("messages", "memory"), ("local", "tcp")


def hook_threads():
    return [thread for thread in threading.enumerate() if thread.name == "hooks"]


def check_weights(kind, spec, world, workers):
    task = task_of(kind)
    cluster = WORLDS[world](workers)
    is_rounded = kind in ROUNDED  # a sum over a slice is then rounded otherwise than a sum over the batch
    reference = ("all-reduce:algorithm=ring", simulated(workers)) if is_rounded else ("single", simulated(1))
    expected = pl.train(task, *reference, steps=STEPS)
    run = pl.train(task, spec, cluster, steps=STEPS)
    if is_rounded:
        torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=ROUNDED[kind])
    else:
        check_close(run.parameters, expected.parameters)
    for name, average in expected.ema_state.items():
        check_close(run.ema_state[name], average)
    assert not hook_threads()


@pytest.mark.parametrize(("kind", "stage", "world"), one_in(5, itertools.product(TASKS, (3, 2), VIRTUAL)))
def test_any_model_gives_the_weights_of_single(kind, stage, world):
    check_weights(kind, f"zero:stage={stage}", world, 3)


@pytest.mark.parametrize(
    ("kind", "stage", "world", "workers"),
    [
        ("routed", 3, "local", 2),
        pytest.param("own-step", 3, "tcp", 3, marks=pytest.mark.slow),
        *(
            pytest.param(kind, 3 - n % 2, REAL[n // 2 % 2], 2 + n % 3, marks=pytest.mark.slow)
            for n, kind in enumerate(TASKS)
        ),
    ],
)
def test_so_it_does_in_processes(kind, stage, world, workers):
    check_weights(kind, f"zero:stage={stage}", world, workers)


@pytest.mark.parametrize(
    ("spec", "workers"),
    one_in(
        4,
        itertools.product(
            [
                "zero:stage=3,segments=1",
                "zero:stage=3,segments=2,microbatches=3",
                "zero:stage=2,microbatches=2",
            ],
            [1, 2, 5, 9],  # with 9 workers a slice is empty
        ),
    ),
)
def test_any_number_of_workers_segments_and_micro_batches(spec, workers):
    check_weights("routed", spec, "messages", workers)


@pytest.mark.parametrize("seed", one_in(12, zip(range(24))))
def test_random_trees_of_blocks_on_random_clusters(seed):
    rng = random.Random(seed)
    task = a_task(
        model=lambda: tree(seed), batch_size=rng.choice([5, 7, 8]), clip_norm=rng.choice([None, 0.1])
    )
    segments, micros = rng.choice([1, 2, 4, 8, 20]), rng.choice([1, 1, 2, 3])
    spec = f"zero:stage={rng.choice([2, 3, 3])},hooks=true,segments={segments},microbatches={micros}"
    link = rng.choice(["shared-memory", pl.Link("10Gbps", "50us"), pl.Link("1Mbps", "10ms")])
    cluster = pl.Simulated(workers=rng.randint(1, 6), compute=pl.times.Exponential("1ms"), link=link)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    check_close(pl.train(task, spec, cluster, steps=STEPS).parameters, expected.parameters)


@pytest.mark.parametrize("kind", ["own-step", "several-models", "moving-average"])
def test_stage_1_has_steps_and_averages_too(kind):
    check_weights(kind, "zero:stage=1", "messages", 3)


def test_dropout_is_that_of_the_unsplit_model():
    task = gpt_task(dropout=0.2)
    expected = pl.train(task, "all-reduce:algorithm=ring", simulated(2), steps=STEPS)
    check_close(
        pl.train(task, "zero:stage=3,hooks=true", simulated(2), steps=STEPS).parameters, expected.parameters
    )


def test_all_worlds_give_the_same_bits():
    runs = [pl.train(task_of("routed"), "zero:stage=3", WORLDS[world](3), steps=STEPS) for world in VIRTUAL]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_two_simulations_give_the_same_trace(tmp_path):
    traces = []
    for number in range(2):
        run = pl.train(task_of("branching"), "zero:stage=3", simulated(3), steps=STEPS)
        run.trace.save(tmp_path / f"{number}.json")
        traces.append((tmp_path / f"{number}.json").read_bytes())
    assert traces[0] == traces[1]


def test_a_gradient_takes_the_seconds_that_it_is_given():
    cluster = pl.Simulated(workers=2, compute=pl.times.Constant("10ms"), link=pl.Link.ideal())
    for stage in (2, 3):
        run = pl.train(task_of("twice"), f"zero:stage={stage}", cluster, steps=STEPS)
        assert run.seconds == pytest.approx(STEPS * 0.01)


# Memory

WIDE = 32


def deep():
    return Looking(*(nn.Linear(WIDE, WIDE) for _ in range(16))).double()


def deep_task(**changes):
    data = torch.randn(8, WIDE, dtype=torch.float64), torch.zeros(8, 2, dtype=torch.float64)
    return a_task(model=deep, data=data, **changes)


@pytest.mark.parametrize("world", VIRTUAL)
def test_a_rank_has_its_shard_and_the_units_in_use(world):
    whole = 8 * sum(parameter.numel() for parameter in deep().parameters())
    run = pl.train(deep_task(), "zero:stage=3,segments=16", WORLDS[world](4), steps=STEPS)
    for rank in run.memory:
        assert rank["parameters"] <= whole / 4 + 3 * whole / 16
        assert rank["gradients"] <= whole / 4 + 3 * whole / 16
    run = pl.train(deep_task(), "zero:stage=2,segments=16", WORLDS[world](4), steps=STEPS)
    for rank in run.memory:
        assert rank["gradients"] <= whole / 4 + 3 * whole / 16


# Ends


class Failing(Looking):
    """Fails in the third batch of a rank: in a forward pass, or in a backward pass."""

    where = "forward"

    def __init__(self):
        super().__init__(*linears())
        self.calls = 0

    def call(self, block, x):
        self.calls += 1
        made = block(x)
        if self.calls == 8:
            if self.where == "forward":
                raise ValueError("failed on purpose")
            made.register_hook(self.fail)
        return made

    def fail(self, gradient):
        raise ValueError("failed on purpose")


class FailingBackward(Failing):
    where = "backward"


@pytest.mark.parametrize("model", [Failing, FailingBackward])
@pytest.mark.parametrize("world", one_in(2, zip(VIRTUAL)))
def test_an_error_in_a_pass_ends_the_run_and_its_threads(model, world):
    with pytest.raises(WorkerError, match="purpose"):
        pl.train(a_task(model=lambda: model().double()), "zero:stage=3", WORLDS[world](3), steps=STEPS)
    assert not hook_threads()


def test_the_loss_of_a_rank_ends_a_simulation_and_its_threads():
    cluster = pl.Simulated(workers=3, compute=pl.times.Constant("1ms"), faults=(pl.faults.Kill(1, step=2),))
    with pytest.raises(PeerLost):
        pl.train(task_of("routed"), "zero:stage=3", cluster, steps=20)
    assert not hook_threads()


@pytest.mark.parametrize("link", ["shared-memory", pytest.param("tcp", marks=pytest.mark.slow)])
def test_the_loss_of_a_process_ends_the_run(link, tmp_path):
    task = a_task(model=lambda: Routed().double(), loss=deadly_once(tmp_path / "dead"))
    with pytest.raises(PeerLost):
        pl.train(task, "zero:stage=3", pl.Local(workers=3, link=link, deadline_s=20), steps=40)


class Interrupted(Looking):
    """Receives Ctrl-C in a forward pass."""

    def __init__(self):
        super().__init__(*linears())
        self.calls = 0

    def call(self, block, x):
        self.calls += 1
        if self.calls == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return block(x)


def test_ctrl_c_in_a_pass_ends_a_simulation_and_its_threads():
    with pytest.raises(KeyboardInterrupt):
        pl.train(a_task(model=lambda: Interrupted().double()), "zero:stage=3", simulated(3), steps=STEPS)
    assert not hook_threads()


# Checkpoints and refusals


@pytest.mark.parametrize("kind", one_in(2, zip(("routed", "several-models", "moving-average"))))
def test_a_resumed_run_has_the_same_bits(kind, tmp_path):
    task, steps = task_of(kind), 6
    kept = {"checkpoint": tmp_path, "checkpoint_every": 3}
    expected = pl.train(task, "zero:stage=3", simulated(3), steps=steps)
    pl.train(task, "zero:stage=3", simulated(3), steps=steps // 2, **kept)
    run = pl.train(task, "zero:stage=3", simulated(3), steps=steps, resume="must", **kept)
    assert torch.equal(run.parameters, expected.parameters)
    for name, average in expected.ema_state.items():
        assert torch.equal(run.ema_state[name], average)


def test_a_simulation_without_mathematics_needs_a_model_that_can_be_traced():
    cluster = pl.Simulated(workers=2, compute=pl.times.Constant("1ms"), math="none")
    with refused("model"):
        pl.train(a_task(model=lambda: Routed().double()), "zero:stage=3", cluster, steps=1)


def test_a_strategy_that_cuts_the_model_still_refuses_it():
    with refused("model"):
        pl.train(task_of("routed"), "pipeline", simulated(2), steps=1)


def test_hooks_are_refused_in_stage_1():
    with refused("hooks", True):
        pl.train(a_task(), "zero:stage=1,hooks=true", simulated(2), steps=1)
