import json
import signal
import subprocess
import sys

import pytest
from processes import PATIENCE_S, wait_until
from refusals import has
from typer.testing import CliRunner

from paceline.cli import app

TASK = """
import torch
from torch import nn
from paceline.task.task import Task

x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))

def closeness(outputs, targets):
    return -float((outputs - targets).abs().mean())

task = Task(model=lambda: nn.Linear(3, 1), data=(x, x.sum(1, keepdim=True)), loss=nn.functional.mse_loss,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=16,
            test=(x, x.sum(1, keepdim=True)), metric=closeness, target=-10.0)
"""
SIMULATED = ("--simulate", "--compute", "constant:seconds=10ms")


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "small.py"
    path.write_text(TASK)
    return str(path)


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_comparison_prints_the_table_and_names_the_winner(small):
    words = (
        "--strategies",
        "all-reduce,k-sync:k=3,servers=2,async",
        "--slow",
        "3:4x",
        "--steps",
        "20",
        *SIMULATED,
    )
    result = invoke("compare", small, *words)
    assert result.exit_code == 0, result.stderr
    table, _, summary = result.stdout.partition("\n\n")
    names = [line.split("  ")[0] for line in table.splitlines()]
    assert names == ["strategy", "single", "all-reduce", "k-sync:k=3,servers=2", "async"]
    assert "wins" in summary
    assert "waits" in summary
    assert "rank 3" in summary
    assert "async: starting" in result.stderr


def test_quiet_shows_no_progress(small):
    result = invoke("compare", small, "--strategies", "sync", "--steps", "2", "--quiet", *SIMULATED)
    assert (result.exit_code, result.stderr) == (0, "")


def test_json_is_one_object_and_nothing_else_on_stdout(small):
    words = (
        "--strategies",
        "sync,async",
        "--epochs",
        "2",
        "--repeat",
        "2",
        "--target",
        "-5",
        "--json",
        *SIMULATED,
    )
    result = invoke("compare", small, *words)
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert [entry["name"] for entry in figures["entries"]] == ["single", "sync", "async"]
    assert {entry["target"] for entry in figures["entries"]} == {-5.0}
    assert all(len(entry["spread"]) == 2 for entry in figures["entries"])


def test_out_saves_every_run_and_the_page_which_report_makes_again(small, tmp_path):
    out = tmp_path / "runs" / "one"
    words = ("--strategies", "sync,async", "--steps", "4", "--no-baseline", "--out", out, *SIMULATED)
    result = invoke("compare", small, *words)
    assert result.exit_code == 0, result.stderr
    assert "report.html" in result.stderr
    assert "small.py on 4 simulated workers" in (out / "report.html").read_text()
    assert len(list(out.glob("*/*/run.json"))) == 2
    again = invoke("report", out, "--out", tmp_path / "again.html")
    assert again.exit_code == 0, again.stderr
    table = result.stdout.partition("\n\n")[0]
    assert again.stdout.startswith(table)


def test_a_strategy_that_fails_is_told_and_the_others_are_reported(small, tmp_path):
    words = (
        "--strategies",
        "all-reduce:algorithm=native,sync",
        "--steps",
        "2",
        "--out",
        tmp_path / "out",
        *SIMULATED,
    )
    result = invoke("compare", small, *words)
    assert result.exit_code == 1
    assert "algorithm must not be native in a simulation" in result.stdout
    assert "sync" in result.stdout
    assert (tmp_path / "out" / "report.html").is_file()
    assert "all-reduce:algorithm=native: failed" in result.stderr


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--strategies", ""), has("--strategies")),
        (("--strategies", "k=3"), has("--strategies", "k=3")),
        (("--strategies", "sync,all-reduse"), has("'all-reduce'")),
        (("--strategies", "k-sync:kk=3"), has("k-sync", "kk")),
        (("--strategies", "k-sync:k=9"), has("k", "1", "4")),
        (("--strategies", "sync", "--out", __file__), has("--out")),
        (("--strategies", "sync", "--against", "dpd"), has("against", "ddp")),
        (("--strategies", "sync", "--repeat", "0"), has("repeat")),
        (("--strategies", "sync", "--steps", "2", "--epochs", "2"), has("--steps", "--epochs")),
        (("--strategies", "sync", "--simulate", "--against", "ddp"), has("against")),
        (("--strategies", "sync", "--compute", "soon"), has("--compute", "soon")),
        (
            ("--strategies", "sync", "--compute", "const:1ms", "--against", "ddp"),
            has("against"),
        ),
        (("--strategies", "sync,sync"), has("strategies", "sync")),
    ],
)
def test_a_word_that_cannot_be_right_is_refused_with_exit_code_2(small, words, facts):
    result = invoke("compare", small, *words)
    assert facts == result.stderr
    assert result.stdout == ""
    assert "starting" not in result.stderr
    assert result.exit_code == 2


def test_no_strategy_has_exit_code_2(small):
    result = invoke("compare", small)
    assert result.exit_code == 2
    assert "--strategies" in result.stderr


def test_a_comparison_that_cannot_be_saved_says_so(small, tmp_path, monkeypatch):
    from paceline.runs.run import Run

    def full(self, directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "save", full)
    words = ("--strategies", "sync", "--steps", "1", "--out", tmp_path / "out", *SIMULATED)
    result = invoke("compare", small, *words)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr


def test_a_slow_link_and_no_math_describe_the_simulated_cluster(small):
    words = ("--strategies", "all-reduce:algorithm=ring", "--steps", "2", "--json", "--quiet", *SIMULATED)
    usual, slow = (
        json.loads(invoke("compare", small, *words, *more).stdout)["entries"][1]
        for more in (("--math", "none"), ("--math", "none", "--slow-link", "0-1:1kbps"))
    )
    assert usual["loss"] is None
    assert slow["seconds"] > 2 * usual["seconds"]


@pytest.mark.parametrize(("option", "value"), [("--math", "none"), ("--slow-link", "0-3:1Gbps")])
def test_what_describes_machines_needs_some(small, option, value):
    words = ("train", small, option, value, "--strategy", "single", "--ray", "--workers", "1")
    result = (
        invoke(*words, "--steps", "1") if option == "--slow-link" else invoke("train", small, option, value)
    )
    assert result.exit_code == 2
    assert option.lstrip("-") in result.stderr


SLEEPY = (
    TASK
    + """
import pathlib, time

class Sleepy(nn.Linear):
    def forward(self, x):
        if pathlib.Path(__file__).with_suffix(".sleep").exists():
            pathlib.Path(__file__).with_suffix(".asleep").touch()
            time.sleep(0.05)
        return super().forward(x)

task = Task(model=lambda: Sleepy(3, 1), data=(x, x.sum(1, keepdim=True)), loss=nn.functional.mse_loss,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=16)
"""
)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_leaves_the_table_and_the_page_of_the_finished_strategies(number, tmp_path):
    file, out = tmp_path / "sleepy.py", tmp_path / "out"
    file.write_text(SLEEPY)
    words = ["compare", file, "--strategies", "sync", "--steps", "2000", "--out", out, *SIMULATED, "--quiet"]
    command = [sys.executable, "-m", "paceline", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_until(
            lambda: (out / "comparison.json").exists() or running.poll() is not None, "single has ended"
        )
        file.with_suffix(".sleep").touch()
        wait_until(lambda: file.with_suffix(".asleep").exists() or running.poll() is not None, "it sleeps")
        running.send_signal(number)
        printed, said = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130, said
    assert [line.split("  ")[0] for line in printed.split("\n\n")[0].splitlines()] == ["strategy", "single"]
    assert "--resume" in said
    assert (out / "report.html").exists()
    file.with_suffix(".sleep").unlink()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert [line.split("  ")[0] for line in resumed.stdout.split("\n\n")[0].splitlines()][1:] == [
        "single",
        "sync",
    ]
