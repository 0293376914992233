import dataclasses
import json
import os
import subprocess
import sys

import pytest
from checkpoints.shards import save
from chosen_runs import run_of
from cli.test_cli import invoke
from tasks import a_task, samples, simulated

import paceline as pl
from paceline.checkpoints import Store


@pytest.fixture
def folder(tmp_path):
    run_of("sync").save(tmp_path / "digits")
    long = tmp_path / ("a-folder-with-a-very-long-name-" * 4)
    for step in (10, 20):
        save(Store(long), step, metric=0.25)
    os.truncate(long / "step-00000020" / "rank-00001.safetensors", 4096)
    return tmp_path


def test_runs_and_checkpoints_are_listed_in_100_columns(folder):
    result = invoke("runs", str(folder))
    assert result.exit_code == 0, result.stderr
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["name", "kind", "step", "metric", "size", "age", "whole"]
    *checkpoints, digits = lines[:3]
    assert digits.split()[:2] == ["digits", "run"]
    assert digits.endswith("yes")
    for step, whole, line in zip((10, 20), ("yes", "no"), checkpoints, strict=True):
        name, kind, told, _, metric, *_, last = line.split()
        assert name.startswith("…")
        assert name.endswith(f"/step-000000{step}")
        assert (kind, told, metric, last) == ("checkpoint", str(step), "0.25", whole)
    assert "rank-00001.safetensors" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_a_metric_is_listed_with_its_name(tmp_path):
    run = run_of("sync")
    dataclasses.replace(run, fingerprint=run.fingerprint | {"metric": "accuracy"}).save(tmp_path / "run")
    task = a_task(test=samples(), metric="mse")
    pl.train(task, "single", simulated(1), steps=2, checkpoint=tmp_path / "checkpoints")
    listed = json.loads(invoke("runs", str(tmp_path), "--json").stdout)
    assert {each["kind"]: each["metric_name"] for each in listed} == {"checkpoint": "mse", "run": "accuracy"}
    assert " mse " in invoke("runs", str(tmp_path)).stdout


def test_json_has_the_same_figures(folder):
    listed = json.loads(invoke("runs", str(folder), "--json").stdout)
    assert [(each["kind"], each["whole"]) for each in listed] == [
        ("checkpoint", True),
        ("checkpoint", False),
        ("run", True),
    ]
    assert listed[1]["problem"].startswith("rank-00001.safetensors: ")


def test_a_quick_look_says_what_it_did(folder):
    told = invoke("runs", str(folder / "digits"), "--quick").stdout
    assert "sizes match" in told


def test_an_empty_folder_is_said_and_a_missing_one_refused(tmp_path):
    assert "no runs or checkpoints" in invoke("runs", str(tmp_path)).stdout
    result = invoke("runs", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "must be a folder" in result.stderr


def test_torch_is_not_needed(folder):
    program = (
        f"import sys\nfrom paceline.cli import app\napp(['runs', {str(folder)!r}], standalone_mode=False)\n"
    )
    program += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)
