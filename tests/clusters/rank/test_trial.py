"""A trial of a task runs the user's code without side effects on the run."""

import os
import signal

import pytest
import torch
from gans import a_gan
from tasks import a_task

from paceline.clusters.base.job import Job
from paceline.clusters.rank import trial
from paceline.clusters.rank.trial import compare_trials, try_task
from paceline.data.samples import Samples
from paceline.strategies import parse
from paceline.testing.tasks import stream_task


def tried(task):
    return try_task(Job(strategy=parse("single"), roles=("worker",), seed=0, task=task), Samples.of(task))


def test_one_task_has_one_trial():
    found = tried(a_task())
    assert {*found} == {"count", "samples", "losses", "weights"}
    assert tried(a_task()) == found
    assert compare_trials(found, found) == []


def test_a_step_that_trains_models_in_turn_has_a_loss_of_each_turn():
    assert len(tried(a_gan())["losses"]) == 2 * 4


def test_a_stream_is_not_read():
    assert tried(stream_task()) == {}


class File(torch.utils.data.Dataset):
    """A dataset that reads its samples in sequence from an open file."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(self.file.read(1)[0])] * 4).double(), torch.zeros(2).double()


def test_a_file_that_the_data_has_open_stays_where_it_was(tmp_path):
    (tmp_path / "data").write_bytes(bytes(100_000))
    with open(tmp_path / "data", "rb", buffering=0) as file:
        task = a_task(data=File(file))
        file.read(10)
        offset = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        tried(task)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == offset


def dies(outputs, targets):
    os.kill(os.getpid(), signal.SIGKILL)


def raises(outputs, targets):
    raise RuntimeError("broken")


@pytest.mark.parametrize("loss", [dies, raises])
def test_a_loss_that_fails_is_left_out_and_the_samples_are_compared(loss):
    found = tried(a_task(loss=loss))
    assert {*found} == {"count", "samples"}
    assert found["samples"] == tried(a_task())["samples"]


def test_a_trial_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(trial, "_DEADLINE_S", 0.5)
    found = tried(a_task(loss=lambda outputs, targets: signal.pause()))
    assert "losses" not in found


def test_what_the_task_prints_is_not_seen(capfd):
    tried(a_task(loss=lambda outputs, targets: print("a loss") or outputs.sum()))
    assert capfd.readouterr().out == ""


def test_losses_of_other_weights_are_not_compared():
    before = {"losses": [1.0], "weights": "a"}
    assert compare_trials(before, {"losses": [2.0], "weights": "b"}) == []
    assert "were 1.0 and are 2.0 now" in compare_trials(before, {"losses": [2.0], "weights": "a"})[0]
    assert compare_trials(before, {}) == compare_trials({}, before) == []
