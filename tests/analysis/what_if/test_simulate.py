"""What if: predictions from the trace of a saved run, against runs with the change.

The runs are simulated, so that no test depends on the load of the machine.
"""

import dataclasses

import pytest
import torch
from refusals import has, refused
from torch import nn

import paceline as pl
from paceline.analysis.what_if.simulate import what_if

SLOW = {3: 3.0}
STEPS = 80


def two_layers():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def wide():
    """Two thirds of the work are in the second half."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))


def make_run(
    strategy="all-reduce", workers=4, bandwidth="100Mbps", slow=SLOW, *, layers=two_layers, **changes
):
    task = pl.Task(
        model=layers(),
        data=(torch.zeros(512, 64), torch.zeros(512, 64)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=32,
    )
    given = {"compute": pl.times.ShiftedExponential("15ms", "1ms"), "link": pl.Link(bandwidth, "200us")}
    cluster = pl.Simulated(workers=workers, slow=slow, math="none", **(given | changes))
    return pl.train(task, strategy, cluster, steps=STEPS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make_run().save(folder)
    return pl.Run.load(folder)


@pytest.mark.parametrize("strategy", ["all-reduce", "sync", "async", "decentralized"])
def test_without_the_slow_rank_a_step_is_that_of_a_run_without_it(strategy):
    found = what_if(make_run(strategy), without_slow=3)
    assert found.step_s == pytest.approx(make_run(strategy, slow={}).step_seconds, rel=0.05)
    assert abs(found.residual) < 0.05


def test_a_saved_run_is_enough_for_each_change(run):
    faster = make_run(bandwidth="1Gbps").step_seconds
    assert what_if(run, bandwidth="1Gbps").step_s == pytest.approx(faster, rel=0.05)
    wider = make_run(workers=6).step_seconds
    assert what_if(run, workers=6).step_s == pytest.approx(wider, rel=0.05)
    other = make_run("sync").step_seconds
    assert what_if(run, strategy="sync").step_s == pytest.approx(other, rel=0.05)


def test_changes_are_combined(run):
    found = what_if(run, without_slow=3, bandwidth="1Gbps", strategy="sync")
    expected = make_run("sync", bandwidth="1Gbps", slow={}).step_seconds
    assert found.step_s == pytest.approx(expected, rel=0.05)
    assert len(found.changes) == 3
    assert has("1Gbps", "sync", 3) == str(found)


def test_gradients_whose_time_was_not_given_depend_on_their_samples(run):
    measured = dataclasses.replace(run, cluster="4 local workers", environment={})
    half = make_run(workers=8, compute=pl.times.ShiftedExponential("7.5ms", "0.5ms"))
    assert what_if(measured, workers=8).step_s == pytest.approx(half.step_seconds, rel=0.05)


def test_a_run_over_shared_memory_keeps_its_windows():
    memory = {"link": "shared-memory", "inside": pl.Link("1Gbps", "0us")}
    found = what_if(make_run(**memory), without_slow=3)
    assert found.step_s == pytest.approx(make_run(slow={}, **memory).step_seconds, rel=0.05)


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("pipeline:stages=2,microbatches=4", 2),
        ("hybrid:data=2,pipeline=2,microbatches=2", 4),
        ("zero:stage=2", 2),
        ("tensor:size=2", 2),
    ],
)
def test_a_run_in_segments_is_replayed_without_its_slow_rank(strategy, workers):
    slow = make_run(strategy, workers=workers, slow={1: 3.0}, layers=wide)
    found = what_if(slow, without_slow=1)
    expected = make_run(strategy, workers=workers, slow={}, layers=wide)
    assert found.residual is None
    assert found.step_s == pytest.approx(expected.step_seconds, rel=0.05)
    assert found.assumed in str(found)


@pytest.mark.parametrize("strategy", ["pipeline:stages=2,microbatches=4", "layers"])
def test_a_pipeline_is_replayed_with_other_links(strategy):
    words = {"workers": 2, "slow": {}, "layers": wide}
    slow = make_run(strategy, bandwidth="10Mbps", **words)
    faster = make_run(strategy, bandwidth="100Mbps", **words)
    assert faster.step_seconds < 0.95 * slow.step_seconds
    found = what_if(slow, bandwidth="100Mbps")
    assert found.step_s == pytest.approx(faster.step_seconds, rel=0.05)


def test_a_pipeline_is_replayed_with_several_changes():
    strategy, words = "pipeline:stages=2,microbatches=4", {"workers": 2, "layers": wide}
    found = what_if(
        make_run(strategy, slow={1: 3.0}, bandwidth="10Mbps", **words), without_slow=1, bandwidth="1Gbps"
    )
    expected = make_run(strategy, slow={}, bandwidth="1Gbps", **words)
    assert found.step_s == pytest.approx(expected.step_seconds, rel=0.05)


def test_what_a_run_cannot_tell_is_refused(run):
    with refused("changes"):
        what_if(run)
    with refused("without_slow", 9, bound=has(0, 3)):
        what_if(run, without_slow=9)
    with refused("without_slow", 0):
        what_if(make_run(compute=pl.times.Constant("15ms")), without_slow=0)
    with refused("workers", 0):
        what_if(run, workers=0)
    with refused("strategy", "pipeline:stages=2"):
        what_if(run, strategy="pipeline:stages=2")
    with refused("run", bound=has("gradients")):
        what_if(make_run("pipeline:stages=2", workers=2, slow={}), workers=4)
    with refused("run", "zero:stage=2"):
        what_if(make_run("zero:stage=2", workers=2, slow={}), bandwidth="1Gbps")
    with refused("run"):
        what_if(dataclasses.replace(run, fingerprint={}), bandwidth="1Gbps")
