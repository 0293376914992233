"""Plans for local workers, with a calibration of this machine."""

import dataclasses
import logging

import pytest
from refusals import has, refused
from small_plans import mlp

import paceline as pl
from paceline.costs.calibration import Calibration, ComputeCosts
from paceline.planner import planning
from paceline.system.environment import machine
from paceline.task.fingerprint import fingerprint

NAMES = ["single", "all-reduce", "sync"]


def calibration(of, slowdown, *, fixed_s=1e-3, **changes):
    """Return a calibration by hand: a gradient takes 1 ms, and 1 ms for each sample."""
    compute = ComputeCosts(threads=1, slowdown=slowdown, fixed_s=fixed_s, per_sample_s=1e-3)
    given = {
        "machine": machine() | {"cores": "1"},
        "workers": max(slowdown),
        "compute": (compute,),
        "task": fingerprint(of, of.build_model(0), samples=0, test_samples=0),
    }
    return Calibration(**(given | changes))


def planned(slowdown, *, fixed_s=1e-3, **words):
    task, local = mlp(), pl.Local(workers=2, threads=1)
    made = calibration(task, slowdown, fixed_s=fixed_s)
    return pl.plan(task, local, strategies=NAMES, calibration=made, **words)


def test_workers_with_cores_of_their_own_are_worth_it():
    found = planned({1: 1.0, 2: 1.0})
    assert found.best.workers == 2
    assert found.best.batch_seconds == pytest.approx(9e-3, rel=0.01)
    assert found.entry("single").batch_seconds == pytest.approx(17e-3, rel=0.01)


def test_workers_that_share_a_core_are_not():
    found = planned({1: 1.0, 2: 2.0})
    assert found.best.strategy == "single"
    assert "calibrated" in found.summary[-1]


def test_the_best_entry_runs_on_local_workers():
    found = planned({1: 1.0, 2: 1.0})
    run = pl.train(mlp(), found.best, pl.Local(workers=2), steps=2)
    assert run.steps == 2
    assert run.strategy == found.best.strategy


def test_a_machine_without_a_calibration_is_measured_first(monkeypatch, caplog):
    monkeypatch.setattr(planning, "_CALIBRATION_S", 0.01)
    told = []
    with caplog.at_level(logging.WARNING, "paceline"):
        local = pl.Local(workers=2, threads=1)
        found = pl.plan(mlp(), local, strategies=NAMES, workers=2, progress=told.append)
    assert has("calibrated") == caplog.text
    assert any(each.calibrates for each in told)
    assert found.best.batch_seconds > 0
    (row,) = found.check(top=1, steps=3).rows
    assert row.measured_s > 0


def test_a_check_says_that_the_machine_is_not_as_fast_as_in_its_calibration():
    # A gradient of these few samples takes far less than the second that this calibration has.
    found = planned({1: 1.0, 2: 1.0}, fixed_s=1.0, workers=2)
    checked = found.check(top=1, steps=4)
    assert 0 < checked.rows[0].slowness < 1
    assert any("in the calibration" in sentence for sentence in checked.summary)
    assert checked.as_dict()["rows"][0]["slowness"] == checked.rows[0].slowness


@pytest.mark.parametrize(
    "change",
    [
        {"task": {}},
        {"task": {"model": "another", "loss": "another"}},
        {"machine": machine() | {"processor": "Other", "cores": "1"}, "task": {}},
    ],
)
def test_a_calibration_of_another_task_is_refused(change):
    task = mlp()
    made = dataclasses.replace(calibration(task, {1: 1.0, 2: 1.0}), **change)
    with refused("calibration"):
        pl.plan(task, pl.Local(workers=2, threads=1), calibration=made)


def test_a_calibration_with_fewer_ranks_than_cores_and_workers_is_refused():
    task = mlp()
    made = calibration(task, {1: 1.0}, machine=machine() | {"cores": "8"})
    with refused("workers"):
        pl.plan(task, pl.Local(workers=4, threads=1), calibration=made)
