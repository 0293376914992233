"""DistributedDataParallel as a baseline: weights of `single`, the same slowness, the same record, the same
failures."""

import gc
import os
import signal

import numpy as np
import pytest
import torch
from conformance.cases import CASES, make_task, one_in, single, train_plainly
from processes import workers
from refusals import has, raised, refused
from tasks import a_task, numbers, samples, sgd, simulated
from torch import nn

import paceline as pl
from paceline.baselines.ddp import train_with_ddp
from paceline.errors import DeadlineError, LossNotFiniteError, PeerLost, WorkerError
from paceline.trace import Kind

STEPS = 5


def a_normalised_task():
    """A model with buffers; slices of uneven size, but none of a single sample, which BatchNorm refuses."""
    return a_task(
        model=lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double(),
        data=samples(30),
        batch_size=11,
    )


def seconds_of(run, kind):
    """Return the seconds of each rank in spans of one kind."""
    spans = [each.of(kind) for each in run.trace.spans]
    return np.array([(each["end_s"] - each["start_s"]).sum() for each in spans])


# What it learns


@pytest.mark.parametrize("case", one_in(3, zip(CASES)))
def test_ddp_gives_the_weights_of_single(case):
    unused = case == "unused-layer"
    run = train_with_ddp(
        make_task(case, "momentum"), pl.Local(workers=3), steps=STEPS, find_unused_parameters=unused
    )
    torch.testing.assert_close(run.parameters, single(case, "momentum").parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_ranks_gives_the_weights_of_single_even_where_slices_are_empty(count):
    case = "fewer-samples-than-workers"
    run = train_with_ddp(make_task(case, "adam"), pl.Local(workers=count), steps=STEPS)
    torch.testing.assert_close(run.parameters, single(case, "adam").parameters, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_straggler_changes_nothing_in_the_weights():
    cluster = pl.Local(workers=3, slow={1: 3.0}, delay={2: pl.times.Constant(0.002)})
    run = train_with_ddp(make_task("plain", "momentum"), cluster, steps=STEPS)
    torch.testing.assert_close(run.parameters, single("plain", "momentum").parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("slow", [{}, pytest.param({2: 2.0}, marks=pytest.mark.slow)])
def test_buffers_follow_the_first_rank(slow):
    task = a_normalised_task()
    weights, buffers = train_plainly(task, workers=3)
    run = train_with_ddp(task, pl.Local(workers=3, slow=slow), steps=STEPS)
    torch.testing.assert_close(run.parameters, weights, rtol=0, atol=1e-12)
    for name, buffer in buffers.items():
        torch.testing.assert_close(run.state[name], buffer, rtol=0, atol=1e-12)


def test_dropout_has_the_masks_that_it_has_in_our_own_strategies():
    task = a_task(model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)).double())
    ours = pl.train(task, "all-reduce", pl.Local(workers=2), steps=STEPS)
    run = train_with_ddp(task, pl.Local(workers=2), steps=STEPS)
    torch.testing.assert_close(run.parameters, ours.parameters, rtol=0, atol=1e-12)


def test_the_model_that_comes_home_is_the_one_that_was_evaluated():
    task = a_task(test=samples(), metric=lambda outputs, targets: -float((outputs - targets).square().mean()))
    run = train_with_ddp(task, pl.Local(workers=2), steps=STEPS, evaluate_every=2)
    inputs, targets = samples()
    with torch.no_grad():
        expected = -float((run.model(inputs) - targets).square().mean())
    assert run.metric == pytest.approx(expected, abs=1e-12)
    assert [record.step for record in run.history if record.metric is not None] == [2, 4, 5]


# What is recorded


def test_the_history_is_that_of_our_own_strategies():
    task = make_task("batch-not-divisible", "momentum")
    ours = pl.train(task, "all-reduce", pl.Local(workers=3), steps=STEPS)
    run = train_with_ddp(task, pl.Local(workers=3), steps=STEPS)
    assert run.strategy == "ddp"
    assert [(r.step, r.samples) for r in run.history] == [(r.step, r.samples) for r in ours.history]
    assert [r.loss for r in run.history] == pytest.approx([r.loss for r in ours.history], abs=1e-12)


def test_bytes_are_those_of_the_ring_that_gloo_uses():
    run = train_with_ddp(a_task(), pl.Local(workers=4), steps=STEPS)
    each = 2 * 8 * run.parameters.numel() * 3 // 4
    assert run.bytes_sent == [each * STEPS] * 4
    assert [record.bytes for record in run.history] == [4 * each * (step + 1) for step in range(STEPS)]


@pytest.mark.slow
def test_a_run_that_stops_at_its_target_ends_one_step_later_on_every_rank():
    task = a_task(test=samples(), metric=lambda *_: 1.0, target=0.5)
    run = train_with_ddp(task, pl.Local(workers=3), steps=100, evaluate_every=3, stop_at_target=True)
    assert (run.steps, run.reached_target) == (4, True)


@pytest.mark.slow
def test_progress_is_told():
    heard = []
    train_with_ddp(a_task(), pl.Local(workers=2), steps=300, progress=heard.append)
    assert heard[-1].steps == 300


def test_every_rank_computes_once_and_updates_once_a_step():
    run = train_with_ddp(a_task(), pl.Local(workers=2), steps=STEPS)
    for spans in run.trace.spans:
        for kind in (Kind.COMPUTE, Kind.RECEIVE, Kind.UPDATE):
            assert spans.of(kind)["step"].tolist() == list(range(STEPS))


# Who is slow


@pytest.mark.slow
def test_a_slow_rank_computes_longer_and_the_others_wait_for_it():
    task = a_task(
        model=lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2)).double(),
        data=(numbers(256, 256), numbers(256, 2, seed=1)),
        batch_size=128,
    )
    run = train_with_ddp(task, pl.Local(workers=2, slow={1: 100.0}), steps=3)
    quick, slow = seconds_of(run, Kind.COMPUTE)
    assert slow > 1.5 * quick
    assert run.trace.summary().stragglers[0].rank == 1


@pytest.mark.parametrize("task", [a_task, pytest.param(a_normalised_task, marks=pytest.mark.slow)])
def test_a_delay_lengthens_the_computations_of_its_rank_and_the_waits_of_the_others(task):
    cluster = pl.Local(workers=3, delay={0: pl.times.Constant(0.5)})
    run = train_with_ddp(task(), cluster, steps=3)
    assert seconds_of(run, Kind.COMPUTE)[0] >= 0.5 * 3
    waits = run.trace.summary().waits
    assert waits[1, 0] > 0.5  # of 1.5 s: a busy machine delays the others, too
    assert waits[2, 0] > 0.5


def test_delays_are_drawn_as_for_our_own_strategies():
    cluster = pl.Local(workers=2, delay=pl.times.Exponential(0.03))
    ours, baseline = (
        seconds_of(run, Kind.COMPUTE)
        for run in (
            pl.train(a_task(), "all-reduce", cluster, steps=3, seed=4),
            train_with_ddp(a_task(), cluster, steps=3, seed=4),
        )
    )
    expected = [np.random.default_rng([4, rank, 2]) for rank in range(2)]
    at_least = np.array([sum(cluster.delay.draw(rng) for _ in range(3)) for rng in expected])
    assert (ours >= at_least).all()
    assert (baseline >= at_least).all()


# What goes wrong


@pytest.mark.parametrize(
    ("cluster", "refusal"),
    [
        (simulated(2), refused("cluster", bound=has("pl.Local"))),
        (pl.Local(workers=2, link=pl.Link("1Gbps", "1ms")), refused("link")),
    ],
)
def test_a_cluster_that_ddp_cannot_run_on_is_refused(cluster, refusal):
    with refusal:
        train_with_ddp(a_task(), cluster, steps=1)


def test_bad_arguments_are_refused_as_by_train():
    with refused("steps", 0):
        train_with_ddp(a_task(), pl.Local(workers=2), steps=0)


def unlucky_task(happens):
    """A task in which something happens on rank 1 in step 2."""

    class Unlucky(nn.Linear):
        calls = 0

        def forward(self, inputs):
            type(self).calls += 1
            outputs = super().forward(inputs)
            mine = torch.distributed.get_rank() == 1 and self.calls == 3
            return happens(outputs) if mine else outputs

    return a_task(model=lambda: Unlucky(4, 2).double())


def raises(outputs):
    raise ArithmeticError("not this one")


def kills_itself(outputs):
    os.kill(os.getpid(), signal.SIGKILL)


def stops_itself(outputs):
    os.kill(os.getpid(), signal.SIGSTOP)


def test_an_exception_in_the_users_model_names_rank_step_and_line():
    with raised(WorkerError, rank=1, step=2, cause="ArithmeticError: not this one"):
        train_with_ddp(unlucky_task(raises), pl.Local(workers=3), steps=100)


def test_a_loss_that_is_not_a_number_is_named_with_rank_and_step():
    with raised(LossNotFiniteError, rank=1, step=2):
        train_with_ddp(unlucky_task(lambda outputs: outputs * torch.nan), pl.Local(workers=3), steps=100)


def test_a_rank_that_is_killed_is_named_with_what_others_waited_for():
    with raised(PeerLost, rank=1, reason=has("SIGKILL", 2)):
        train_with_ddp(unlucky_task(kills_itself), pl.Local(workers=3), steps=100)


def test_a_rank_that_stops_ends_the_run_when_the_deadline_has_passed():
    with raised(DeadlineError, operation=has(2, "DistributedDataParallel")):
        train_with_ddp(unlucky_task(stops_itself), pl.Local(workers=2, deadline_s=2.0), steps=100)
    assert workers() == []


def test_ctrl_c_ends_the_run_and_the_next_one_works():
    def interrupt(progress):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_with_ddp(a_task(), pl.Local(workers=2), steps=10**6, progress=interrupt)
    assert workers() == []
    assert train_with_ddp(a_task(), pl.Local(workers=2), steps=2).steps == 2


@pytest.mark.slow
def test_runs_leave_no_descriptor_behind(file_descriptors):
    def held():
        gc.collect()  # an error and the frames that it passed hold each other
        return file_descriptors()

    train_with_ddp(a_task(), pl.Local(workers=2), steps=1)
    before = held()
    train_with_ddp(a_task(), pl.Local(workers=2), steps=1)
    with pytest.raises(WorkerError):
        train_with_ddp(unlucky_task(raises), pl.Local(workers=2), steps=5)
    assert held() == before


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("step", {"loss": None, "step": lambda model, batch: model(batch[0]).mean()}),
        ("optimizer", {"optimizer": {"0": sgd, "2": sgd}}),
        ("accumulate", {"accumulate": 2}),
        ("ema", {"ema": 0.9}),
        ("schedule_every", {"schedule_every": "epoch"}),
        ("compile", {"compile": True}),
    ],
)
def test_what_the_baseline_would_leave_out_is_refused(argument, changes):
    with refused(argument, bound=has("DDP")):
        train_with_ddp(a_task(**changes), pl.Local(workers=2), steps=1)


def test_a_device_is_refused():
    with refused("device", "auto", bound=has("cpu", "DDP")):
        train_with_ddp(a_task(), pl.Local(workers=2, device="auto"), steps=1)
