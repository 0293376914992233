"""`paceline what-if`."""

import json

import pytest
from cli.test_cli import invoke, task_file


@pytest.fixture
def saved(tmp_path, monkeypatch):
    out = tmp_path / "run"
    words = ("--simulate", "--compute", "const:10ms", "--slow", "1:3x", "--workers", "2", "--steps", "6")
    made = invoke("train", task_file(tmp_path), *words, "--strategy", "sync", "--out", str(out), "--quiet")
    assert made.exit_code == 0, made.stderr
    return out


def test_a_saved_run_is_predicted_without_its_slow_rank(saved):
    made = invoke("what-if", str(saved), "--without-slow", "1", "--json")
    assert made.exit_code == 0, made.stderr
    found = json.loads(made.stdout)
    assert found["step_s"] < 0.5 * found["recorded_s"]
    assert "rank 1" in invoke("what-if", str(saved), "--without-slow", "1").stdout


@pytest.mark.parametrize(
    ("words", "fact"),
    [((), "changes"), (("--without-slow", "7"), "without_slow"), (("--bandwidth", "fast"), "bandwidth")],
)
def test_changes_that_are_impossible_are_refused(saved, words, fact):
    made = invoke("what-if", str(saved), *words)
    assert made.exit_code == 2
    assert fact in made.stderr


def test_other_files_are_refused(tmp_path):
    made = invoke("what-if", str(tmp_path / "missing"))
    assert (made.exit_code, "missing" in made.stderr) == (2, True)
    (tmp_path / "rank0.json").write_text("{}")
    made = invoke("what-if", str(tmp_path))
    assert (made.exit_code, "traceEvents" in made.stderr) == (2, True)
