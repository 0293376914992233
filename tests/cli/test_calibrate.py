"""`paceline calibrate`, and simulations with its file."""

import json
import sys

import pytest
from cli.test_cli import invoke, task_file

from paceline.costs.calibration import Calibration
from paceline.system.environment import machine


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return task_file(tmp_path)


def test_the_file_that_calibrate_writes_is_used_by_train_and_compare(file, tmp_path):
    out = tmp_path / "here.json"
    words = ("--workers", "2", "--threads", "1", "--seconds", "0.01", "--out", str(out), "--json")
    made = invoke("calibrate", file, *words)
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["machine"] == machine()
    assert Calibration.load(out).task
    given = ("--simulate", "--calibration", str(out), "--workers", "2", "--threads", "1", "--quiet", "--json")
    trained = invoke("train", file, *given, "--link", "tcp", "--math", "none", "--steps", "2")
    assert trained.exit_code == 0, trained.stderr
    assert json.loads(trained.stdout)["step_seconds"] > 0
    compared = invoke(
        "compare", file, *given, "--strategies", "all-reduce,sync", "--no-baseline", "--steps", "2"
    )
    assert compared.exit_code == 0, compared.stderr


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("train", "--calibration", "x.json"), ("--calibration", "--simulate")),
        (
            ("train", "--simulate", "--cluster", "four-pcs", "--calibration", "x.json"),
            ("--cluster", "x.json"),
        ),
        (("train", "--simulate", "--calibration", "missing.json"), ("missing.json",)),
        (("calibrate", "--seconds", "0"), ("--seconds",)),
        (("calibrate", "--workers", "0"), ("workers",)),
        (("calibrate", "--out", "/no/such/folder/x.json"), ("--out",)),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_measured(file, words, facts):
    command, *rest = words
    made = invoke(command, file, *rest)
    assert made.exit_code == 2
    assert all(fact in made.stderr for fact in facts), made.stderr
