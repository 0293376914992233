import re

import pytest
from cli.test_cli import invoke

from paceline.strategies import STRATEGIES


def test_a_task_is_built_tried_and_described(tmp_path):
    file = tmp_path / "mine.py"
    invoke("new", str(file))
    result = invoke("check", str(file), "--workers", "4")
    assert result.exit_code == 0, result.stderr
    told = dict(line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line)
    assert told["parameters"].strip().startswith("1,539, all trained")
    assert told["samples"].strip() == "3,000, 600 for tests"
    assert "for a batch of 64" in told["a gradient"]
    assert "for a worker's slice of 16" in told["a gradient"]
    assert "activations" in result.stdout
    assert (
        f"{len(STRATEGIES)} of {len(STRATEGIES)} strategies tried on 4 simulated workers work"
        in result.stdout
    )


def test_the_best_interval_of_checkpoints_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("new", "mine.py")
    told = " ".join(invoke("check", "mine.py").stdout.split())
    assert re.search(r"interval \(Young, Daly\): .+ for a failure per hour, .+ per day, .+ per week", told)
    told = " ".join(invoke("check", "mine.py", "--failures-every", "6h").stdout.split())
    assert "for a failure every 6 h 0 min" in told
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["mine.py"]


@pytest.mark.parametrize("words", ["0", "-1s", "soon"])
def test_failures_that_never_or_always_come_are_refused(tmp_path, words):
    result = invoke("check", str(tmp_path / "mine.py"), "--failures-every", words)
    assert result.exit_code == 2
    assert "--failures-every" in result.stderr


def test_the_commands_it_ends_with_can_be_typed(tmp_path):
    file = tmp_path / "mine.py"
    invoke("new", str(file))
    *_, train, compare = invoke("check", str(file), "--workers", "2").stdout.splitlines()
    simulated = ("--simulate", "--compute", "const:1ms", "--steps", "2", "--quiet")
    for line in (train, compare):
        words = line.partition("paceline ")[2].split()
        result = invoke(*words, *simulated)
        assert result.exit_code == 0, result.stderr


def test_no_line_is_wider_than_100_columns(tmp_path):
    file = tmp_path / "mine.py"
    invoke("new", str(file))
    file.write_text(
        file.read_text().replace("nn.ReLU()", "nn.BatchNorm1d(64)").replace("batch_size=64", "batch_size=4")
    )
    result = invoke("check", str(file))
    assert "Expected more than 1 value per channel" in " ".join(result.stdout.split())
    assert max(len(line) for line in result.stdout.splitlines() if str(file) not in line) <= 100
    assert f"fix the first problem, then run again: paceline check {file}" in result.stdout


def test_an_error_of_the_task_is_shown_with_its_line(tmp_path):
    file = tmp_path / "mine.py"
    invoke("new", str(file))
    file.write_text(file.read_text().replace("nn.Linear(64, 3)", "nn.Linear(63, 3)"))
    result = invoke("check", str(file))
    assert result.exit_code != 0
    assert "63" in result.stderr
