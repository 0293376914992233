"""Simulations with a calibration: its links, its gradients, and its cores."""

import dataclasses
import logging

import pytest
import torch
from refusals import has, refused
from torch import nn

import paceline as pl
from paceline.clusters.simulated.calibrated import _warn_once
from paceline.costs.calibrated_costs import ComputeCosts, LinkCosts
from paceline.costs.calibration import Calibration
from paceline.costs.pass_shares import PassShares
from paceline.system.environment import machine
from paceline.task.fingerprint import fingerprint

GRADIENT_S, SAMPLE_S = 0.1, 0.01


def task(width=8):
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)),
        data=(torch.zeros(64, 4), torch.zeros(64, 2)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=16,
    )


def calibration(slowdown, of=None, links=(), **changes):
    compute = ComputeCosts(threads=1, slowdown=slowdown, fixed_s=GRADIENT_S, per_sample_s=SAMPLE_S)
    identity = {} if of is None else fingerprint(of, of.build_model(0), samples=0, test_samples=0)
    given = {"machine": machine() | {"cores": "1"}, "workers": max(slowdown), "compute": (compute,)}
    return Calibration(**(given | {"task": identity, "links": links} | changes))


def step_s(strategy, workers, made, steps=4, **options):
    cluster = pl.Simulated(workers=workers, calibration=made, math="none", **options)
    return pl.train(task(), strategy, cluster, steps=steps).step_seconds


def gradient_s(samples):
    return GRADIENT_S + SAMPLE_S * samples


def test_ranks_that_compute_at_once_take_longer_by_the_measured_factor():
    made = calibration({1: 1.0, 2: 1.5, 4: 3.0}, task())
    assert step_s("single", 1, made) == pytest.approx(gradient_s(16))
    assert step_s("all-reduce", 2, made) == pytest.approx(1.5 * gradient_s(8))
    assert step_s("all-reduce", 4, made) == pytest.approx(3.0 * gradient_s(4))


def test_ranks_that_compute_in_turn_do_not_slow_each_other_down():
    made = calibration({1: 1.0, 2: 2.0}, task())
    assert step_s("layers", 2, made) == pytest.approx(gradient_s(16))


def test_a_slow_rank_is_alone_on_the_cores_when_the_others_have_ended():
    made = calibration({1: 1.0, 2: 2.0}, task())
    # Both share the core until rank 0 has ended. Rank 1 then has the same work left, alone.
    assert step_s("all-reduce", 2, made, slow={1: 2.0}) == pytest.approx(3 * gradient_s(8))


def test_a_cancelled_gradient_no_longer_uses_the_cores():
    made = calibration({1: 1.0, 2: 2.0}, task())
    found = step_s("k-sync:k=1", 2, made, steps=2, slow={1: 100.0})
    assert found == pytest.approx(2 * gradient_s(8))


def with_passes(made, **changes):
    shares = PassShares.of([1, 2, 3], forward_s=[1.0, 0.0, 1.0], backward_s=[0.0, 0.0, 2.0], gradient_s=4.0)
    (compute,) = made.compute
    return dataclasses.replace(made, compute=(dataclasses.replace(compute, passes=shares),), **changes)


def test_passes_of_a_split_model_take_their_measured_share_of_a_gradient():
    made = with_passes(calibration({1: 1.0, 2: 1.0}, task()))
    # One micro-batch: the passes of both stages follow each other.
    assert step_s("pipeline:microbatches=1", 2, made) == pytest.approx(gradient_s(16))
    # Four: the first forward passes fill the pipeline, and then the second stage has all the work.
    found = step_s("pipeline:microbatches=4,order=gpipe", 2, made)
    assert found == pytest.approx((0.25 + 4 * 0.75) * gradient_s(4))


def test_a_sharded_gradient_is_copied_to_where_other_ranks_read_it():
    plain = with_passes(calibration({1: 1.0, 2: 1.0}, task()))
    nbytes = 4 * (4 * 8 + 8 + 8 * 2 + 2)
    copied = dataclasses.replace(plain, copy_bytes_per_s=float(nbytes))
    more_s = step_s("zero:stage=2", 2, copied) - step_s("zero:stage=2", 2, plain)
    assert more_s == pytest.approx(1.0)
    assert step_s("all-reduce", 2, copied) == step_s("all-reduce", 2, plain)


def test_reads_of_shared_memory_take_longer_beside_computations():
    window = dataclasses.replace(message_link("window", bytes_per_s=1000.0), ranks=2)
    made = calibration({1: 1.0, 2: 1.0, 4: 2.0}, links=(window,))
    found = []

    async def read(ctx):
        memory = ctx.net.window("w", rows=2, like=torch.zeros(250))
        await memory.reduce(slice(0, 250), [0, 1], into=torch.zeros(250))
        found.append(ctx.now())

    pl.run_program(read, pl.Simulated(workers=2, calibration=made))
    assert found == pytest.approx([1.0, 1.0])


def message_link(kind="tcp", latency_s=0.0, message_s=0.0, bytes_per_s=float("inf")):
    return LinkCosts(
        kind=kind,
        ranks=2,
        latency_s=latency_s,
        message_s=message_s,
        bytes_per_s=bytes_per_s,
        sizes_bytes=(1,),
        seconds=(1.0,),
    )


def test_a_rank_cannot_send_and_receive_at_the_same_time():
    made = calibration({1: 1.0, 2: 1.0}, links=(message_link(bytes_per_s=1000.0),))
    found = []

    async def exchange(ctx):
        other = 1 - ctx.rank
        sending = ctx.start(ctx.net.send(other, torch.zeros(250)))
        await ctx.net.recv(other, torch.zeros(250))
        await sending
        found.append(ctx.now())

    pl.run_program(exchange, pl.Simulated(workers=2, calibration=made, link="tcp"))
    assert found == pytest.approx([2.0, 2.0])


def test_messages_of_one_sender_follow_each_other_by_the_cost_of_a_message():
    made = calibration({1: 1.0, 2: 1.0}, links=(message_link(latency_s=0.5, message_s=1.0),))
    found = []

    async def stream(ctx):
        for _ in range(3):
            await (ctx.net.send(1, torch.zeros(1)) if ctx.rank == 0 else ctx.net.recv(0, torch.zeros(1)))
        found.append(ctx.now())

    pl.run_program(stream, pl.Simulated(workers=2, calibration=made, link="tcp"))
    assert sorted(found) == pytest.approx([3.0, 3.5])


def test_gradients_of_another_task_are_measured_here():
    made = calibration({1: 1.0, 2: 1.0}, task(width=9), machine=machine())
    run = pl.train(task(), "all-reduce", pl.Simulated(workers=2, calibration=made, threads=1), steps=2)
    assert run.step_seconds > 0
    assert run.step_seconds != pytest.approx(gradient_s(8))


def test_without_mathematics_gradients_of_another_task_are_refused():
    made = calibration({1: 1.0, 2: 1.0}, task(width=9))
    with refused("calibration"):
        step_s("all-reduce", 2, made)


def test_gradients_that_are_missing_are_not_measured_on_another_machine():
    made = calibration({1: 1.0}, machine=machine() | {"cores": "1", "processor": "Other"})
    with refused("calibration", {}):
        pl.train(task(), "single", pl.Simulated(workers=1, calibration=made), steps=1)


def test_a_prediction_for_another_machine_is_marked(caplog):
    _warn_once.cache_clear()
    made = calibration({1: 1.0}, task(), machine=machine() | {"cores": "1", "processor": "Other"})
    with caplog.at_level(logging.WARNING, "paceline"):
        cluster = pl.Simulated(workers=1, calibration=made, math="none")
    assert has("Other") == caplog.text
    assert has("Other") == pl.train(task(), "single", cluster, steps=1).cluster


def test_what_contradicts_a_calibration_is_refused():
    made = calibration({1: 1.0, 2: 1.0}, task())
    with refused("device"):
        pl.Simulated(workers=2, calibration=made, device=pl.devices.A100)
    with refused("calibration", 3):
        pl.Simulated(workers=2, calibration=3)
    with refused("link", "tcp"):
        pl.Simulated(workers=2, link="tcp")
    with refused("hosts", 2):
        pl.Simulated(workers=2, hosts=2, calibration=made)


def test_given_links_and_times_replace_those_of_a_calibration():
    made = calibration({1: 1.0, 2: 2.0}, task())
    assert step_s("all-reduce", 2, made, compute=pl.times.Constant(0.3)) == pytest.approx(0.3)
    slow = pl.Link(latency="1s")
    assert step_s("all-reduce", 2, made, link=slow) == pytest.approx(2.0 + 2 * gradient_s(8))
