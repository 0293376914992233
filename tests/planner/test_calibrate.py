"""`pl.calibrate` on this machine. No test depends on how fast it is."""

import pytest
import torch
from refusals import refused
from torch import nn

import paceline as pl
from paceline.system.environment import machine


def task():
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2)),
        data=(torch.zeros(64, 4), torch.zeros(64, 2)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=16,
    )


@pytest.fixture(scope="module")
def calibrated():
    seen = []
    made = pl.calibrate(pl.Local(workers=2, threads=1), task(), seconds=0.01, progress=seen.append)
    return made, seen


def test_all_costs_of_this_machine_are_measured(calibrated):
    made, seen = calibrated
    assert made.machine == machine()
    assert made.is_of_this_machine
    kinds = {(link.kind, link.ranks) for link in made.links}
    assert kinds == {("shared-memory", 2), ("tcp", 2), ("window", 2)}
    (compute,) = made.compute
    assert compute.threads == 1
    assert set(compute.slowdown) == {1, 2}
    assert compute.samples == (1, 2, 8, 16)
    assert min(compute.seconds) > 0
    assert compute.update_bytes == 64
    assert min(made.start_s, made.copy_bytes_per_s, made.took_s) > 0
    assert seen[0] == "start"
    assert len(seen) == 4


@pytest.mark.parametrize("strategy", ["all-reduce", "async", "pipeline:stages=2", "zero:stage=2"])
def test_a_run_on_this_machine_is_predicted_with_it(calibrated, strategy):
    made, _ = calibrated
    for link in ("shared-memory", "tcp"):
        cluster = pl.Simulated(workers=2, calibration=made, math="none", link=link, threads=1)
        assert pl.train(task(), strategy, cluster, steps=3).step_seconds > 0


def test_without_a_task_the_sharing_of_cores_is_measured():
    made = pl.calibrate(pl.Local(workers=1, threads=1), seconds=0.01)
    assert (made.links, made.task, made.compute[0].samples) == ((), {}, ())
    assert made.compute[0].slowdown == {1: 1.0}
    with refused("compute"):
        pl.Simulated(workers=1, calibration=made, math="none", threads=1)


@pytest.mark.parametrize(
    "cluster",
    [
        pl.Simulated(workers=2),
        pl.Local(workers=2, link=pl.Link("1Gbps")),
        pl.Local(workers=2, compute=pl.times.Constant(1)),
        pl.Local(workers=2, slow={1: 2.0}),
    ],
)
def test_clusters_whose_costs_are_not_those_of_this_machine_are_refused(cluster):
    with refused("cluster"):
        pl.calibrate(cluster)


def test_wrong_arguments_are_refused():
    with refused("seconds", 0):
        pl.calibrate(pl.Local(workers=1), seconds=0)
    with refused("task", 3):
        pl.calibrate(pl.Local(workers=1), 3)
    with refused("progress", 3):
        pl.calibrate(pl.Local(workers=1), progress=3)
