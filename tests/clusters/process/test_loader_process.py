import os
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from paceline.clusters.process import payload
from paceline.clusters.process.loader_process import LoaderProcess
from paceline.data.samples import Samples


class Talkative(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index >= 9:
            raise IndexError("no such sample")
        print(f"sample {index}")
        return torch.tensor([index, torch.get_num_threads()])


@pytest.fixture
def loader():
    loader = LoaderProcess(0, Samples(Talkative()), patience_s=100.0)
    yield loader
    loader.end()


def ask(loader, *numbers):
    loader.channel.send("fetch", {"letter": 5, "number": 1}, [np.array(numbers)])
    return loader.channel.receive()


def test_a_loader_answers_with_the_batch_and_the_letters_number(loader):
    answer = ask(loader, 3, 4)
    content = payload.load(answer.fds[0], answer.values["nbytes"])
    os.close(answer.fds[0])
    assert (answer.word, answer.values["letter"]) == ("loaded", 5)
    assert content.tolist() == [[3, 1], [4, 1]]


def test_a_loader_that_cannot_fetch_says_why_and_goes_on(loader):
    answer = ask(loader, 3, 9)
    assert (answer.word, answer.values["why"]) == ("failed", "IndexError: no such sample")
    os.close(ask(loader, 1).fds[0])


def test_an_interrupt_is_for_the_rank(loader):
    os.kill(loader.pid, signal.SIGINT)
    os.close(ask(loader, 1).fds[0])


def test_what_the_users_code_prints_is_written_out_once(capfd):
    print("before", end="")
    loader = LoaderProcess(0, Samples(Talkative()), patience_s=100.0)
    os.close(ask(loader, 7).fds[0])
    os.close(ask(loader, 8).fds[0])  # when it is answered, what came before has been written
    loader.end()
    assert capfd.readouterr().out.count("sample 7") == 1


def test_a_loader_ends_by_itself_when_its_rank_closes_the_channel(loader):
    loader.channel.close()
    assert loader.ending() == "ended with exit code 0"


def test_a_loader_that_is_stopped_does_not_go_on(loader, monkeypatch):
    monkeypatch.setattr("paceline.clusters.process.loader_process._ENDED_S", 0.01)
    os.kill(loader.pid, signal.SIGSTOP)
    assert loader.ending() == "makes no progress"
