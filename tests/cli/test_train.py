"""`paceline train --checkpoint`: the same command resumes a run."""

import json
import sys

import pytest
from cli.test_cli import invoke, task_file


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    simulated = ("--simulate", "--compute", "const:1ms", "--workers", "2", "--quiet", "--json")
    return ("train", task_file(tmp_path), *simulated, "--checkpoint", str(tmp_path / "kept"))


def test_the_same_words_start_a_run_and_go_on_with_it(words, caplog):
    every = ("--checkpoint-every", "2", "--resume")
    first = invoke(*words, *every, "--steps", "4")
    assert first.exit_code == 0, first.stderr
    assert "the run starts from the beginning" in caplog.text
    again = invoke(*words, *every, "--steps", "7")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["steps"] == 7


def test_a_folder_that_is_used_is_refused_with_the_word_that_goes_on(words):
    assert invoke(*words, "--steps", "2").exit_code == 0
    again = invoke(*words, "--steps", "2")
    assert again.exit_code == 2
    assert "--resume" in again.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--checkpoint-every", "often"), "checkpoint_every must be a time"),
        (("--checkpoint-every", "0"), "checkpoint_every must be a whole number of at least 1"),
    ],
)
def test_a_word_that_cannot_be_right_is_refused(words, more, message):
    result = invoke(*words, *more)
    assert result.exit_code == 2
    assert message in result.stderr


def test_resume_needs_a_folder(words):
    result = invoke(*words[:-2], "--resume")
    assert result.exit_code == 2
    assert "resume needs checkpoint" in result.stderr


def test_a_precision_replaces_that_of_the_task(words):
    losses = {}
    for precision in ("fp32", "bf16"):
        run = invoke(*words[:-2], "--precision", precision, "--steps", "1")
        assert run.exit_code == 0, run.stderr
        losses[precision] = json.loads(run.stdout)["loss"]
    assert losses["fp32"] != losses["bf16"]
    assert invoke(*words[:-2], "--precision", "fp8", "--steps", "1").exit_code == 2


def test_random_faults_of_a_simulation_give_its_goodput(words):
    given = (*words[:-2], "--workers", "4", "--fault", "random:mean=10ms", "--steps", "40")
    run = invoke(*given, "--min-workers", "1", "--restart")
    assert run.exit_code == 0, run.stderr
    goodput = json.loads(run.stdout)["goodput"]
    assert 0 < goodput["with_restart"]["goodput"] < 1
    assert goodput["interval_s"] > 0
    run = invoke(*given)  # a lost worker ends this run, and the answer is printed all the same
    assert run.exit_code == 1
    assert "goodput, min_workers=1, restart" in run.stderr
