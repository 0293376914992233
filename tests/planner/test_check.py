"""A plan, checked by local workers."""

import dataclasses

import pytest
from refusals import refused
from small_plans import LINK, aimed, cluster, mlp

import paceline as pl
from paceline.planner.check import emulated


def test_the_best_entries_are_run_and_compared():
    plan = pl.plan(mlp(), cluster(2), strategies=["map-reduce"], workers=2)
    before = str(plan)
    found = plan.check(top=1, steps=3)
    (row,) = found.rows
    assert row.entry is plan.best
    assert row.measured_s is not None
    assert row.error is not None
    assert plan.checked is found
    assert str(plan).startswith(before)
    assert plan.best.strategy in str(plan).removeprefix(before)


def test_the_time_to_the_target_is_predicted_for_the_seed_of_the_run():
    """Another seed may need another number of steps."""
    plan = pl.plan(aimed(), cluster(2), strategies=["all-reduce"], workers=2)
    (row,) = plan.check(top=1).rows
    assert plan.best.target.low < plan.best.target.high
    assert row.predicted_s == plan.best.target.first
    reached = next(entry.step for entry in row.run.history if (entry.metric or 0) >= 0.9)
    assert reached == round(row.predicted_s / plan.best.batch_seconds)


SLOW_DEVICE = pl.devices.Device(name="a slow one", flops=1e7, memory_bytes_per_s=1e9, memory_bytes=10**9)


@pytest.mark.parametrize("slow", [{}, {1: 3.0}])
def test_a_device_is_emulated_by_the_seconds_of_its_gradients(slow):
    where = pl.Simulated(2, device=SLOW_DEVICE, link=LINK, slow=slow, math="none")
    plan = pl.plan(mlp(), where, strategies=["all-reduce"], workers=2)
    local = emulated(plan, plan.best)
    one = pl.predict(mlp(), "all-reduce", dataclasses.replace(where, slow={})).parts.compute
    assert isinstance(local.compute, pl.times.Constant)
    assert local.compute.mean_s == pytest.approx(one)
    assert (local.slow, local.link, local.workers) == (slow, LINK, 2)
    (row,) = plan.check(top=1, steps=4).rows
    assert row.measured_s >= one * max(
        slow.values(), default=1.0
    )  # emulated gradients take at least their time


def test_a_described_cluster_of_devices_is_checked_by_emulated_hosts():
    plan = pl.plan(mlp(), pl.load_cluster("dgx-a100", hosts=2), strategies=["all-reduce"], workers=9)
    local = emulated(plan, plan.best)
    assert (local.workers, local.hosts) == (9, (8, 1))
    assert local.card == plan.cluster.simulated.card


def test_more_processes_than_this_machine_can_run_are_refused():
    plan = pl.plan(mlp(), cluster(40), strategies=["map-reduce"], workers=40)
    with refused("workers", 41):
        plan.check()
