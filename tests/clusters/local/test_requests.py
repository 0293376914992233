import os

import pytest

from paceline.clusters.local.requests import Requests
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.journal import Journal


@pytest.fixture
def requests():
    made = Requests()
    yield made
    made.close()


def a_letter(word, **values):
    return Letter(word, values)


def test_whoever_asks_for_a_window_by_the_same_name_gets_the_same_memory(requests):
    asked = [
        requests.answer(rank, a_letter("window", name=name, nbytes=64)) for rank, name in enumerate("aab")
    ]
    (first, *_), (second, *_), (other, *_) = (fds for _, fds in asked)
    assert first == second != other


def test_ranks_get_the_same_number_for_a_group(requests):
    numbers = [requests.answer(rank, a_letter("group", members=[0, 2]))[0] for rank in (0, 2)]
    assert numbers[0] == numbers[1]
    assert requests.answer(0, a_letter("group", members=[0, 1]))[0] != numbers[0]


def test_what_a_rank_has_written_into_its_journal_can_be_read_when_it_is_gone(requests):
    _, (fd,) = requests.answer(1, a_letter("journal"))
    Journal(fd).write({"losses": [[0, 0.5, 4]]})
    assert list(requests.told_by(1)) == [b'{"losses": [[0, 0.5, 4]]}\n']
    assert list(requests.told_by(0)) == []


def test_closing_leaves_no_descriptor_open_though_somebody_keeps_the_object():
    before = len(os.listdir("/proc/self/fd"))
    requests = Requests()
    for letter in (a_letter("window", name="board", nbytes=64), a_letter("journal")):
        requests.answer(0, letter)
    requests.close()
    assert len(os.listdir("/proc/self/fd")) == before
