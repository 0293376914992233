"""Requests of ranks on several hosts, and the hub's answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from paceline.clusters.base.job import Job
from paceline.clusters.hosts.requests import Requests
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.links.memory.shared import SharedMemory


@dataclass(frozen=True)
class Pretended:
    def roles(self, workers: int) -> tuple[str, ...]:
        return ("worker",) * workers


@dataclass
class Desk:
    """The requests of four ranks on two hosts, and the messages to each rank."""

    board: StatusBoard
    told: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, Any], list[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = Job(strategy=Pretended(), roles=("worker",) * 4, seed=0)
        self.requests = Requests(job, self.board, self._tell)
        self.requests.hosts = (0, 0, 1, 1)

    def _tell(self, rank: int, word: str, values: dict[str, Any] | None = None) -> None:
        self.told.append((rank, word, values or {}))

    def take(self, rank: int, word: str, blobs: list[bytearray] | None = None, **values: Any) -> None:
        def answer(given: dict[str, Any], parts: list[Any] = ()) -> None:  # type: ignore[assignment]
            self.answers.append((rank, given, list(parts)))

        self.requests.take(rank, Letter(word, values, blobs or []), answer)

    def lose(self, rank: int) -> None:
        self.board.set_status(rank, Status.LOST)
        self.requests.forget(rank)


@pytest.fixture
def desk() -> Iterator[Desk]:
    memory = SharedMemory.create("test", StatusBoard.nbytes(4))
    board = StatusBoard(memory, 4)
    board.last_step = 100
    yield Desk(board)
    memory.close_fd()


def test_no_two_updates_have_the_same_number(desk: Desk):
    for rank in (2, 0, 2):
        desk.take(rank, "count", request=1, first=0)
    assert [values["count"] for _, values, _ in desk.answers] == [1, 2, 3]


def test_memory_is_made_once_a_host_and_those_who_come_early_wait_for_it(desk: Desk):
    desk.take(0, "memory", name="rings")
    desk.take(1, "memory", name="rings")
    desk.take(2, "memory", name="rings")
    assert [(rank, values["path"]) for rank, values, _ in desk.answers] == [(0, ""), (2, "")]
    desk.take(0, "made", name="rings", path="/proc/1/fd/5")
    desk.take(1, "memory", name="rings")
    assert [(rank, values["path"]) for rank, values, _ in desk.answers[2:]] == [(1, "/proc/1/fd/5")] * 2


def test_the_run_ends_for_everybody_before_the_one_who_asked_goes_on(desk: Desk):
    desk.take(0, "end_after", step=11, request=1)
    assert [(rank, values["last_step"]) for rank, _, values in desk.told] == [(r, 12) for r in range(4)]
    for rank in (0, 1, 3):
        desk.take(rank, "last_step", last_step=12)
        assert not desk.answers
    desk.take(2, "last_step", last_step=12)
    assert [rank for rank, _, _ in desk.answers] == [0]


def test_a_metric_is_known_to_everybody_before_the_one_who_found_it_goes_on(desk: Desk):
    desk.take(0, "announce", evaluation=3, metric=0.25, question=1)
    assert [(rank, word, values["metric"]) for rank, word, values in desk.told] == [
        (rank, "metric", 0.25) for rank in range(4)
    ]
    for rank in range(4):
        assert not desk.answers
        desk.take(rank, "metric", metric=0.25)
    assert [rank for rank, _, _ in desk.answers] == [0]


def test_nobody_waits_for_the_answer_of_one_who_is_lost(desk: Desk):
    desk.take(0, "end_after", step=11, request=1)
    for rank in (0, 1, 3):
        desk.take(rank, "last_step", last_step=12)
    desk.lose(2)
    assert [rank for rank, _, _ in desk.answers] == [0]


def test_an_end_that_is_later_than_one_already_set_changes_nothing(desk: Desk):
    desk.take(0, "end_after", step=500)
    assert desk.board.last_step == 100


def test_rows_come_in_order_of_rank_without_those_of_the_lost(desk: Desk):
    desk.lose(1)
    desk.take(0, "rows", request=1, board="b")
    asked = {"asker": 0, "board": "b"}
    assert [(rank, values) for rank, word, values in desk.told if word == "row"] == [
        (0, asked),
        (2, asked),
        (3, asked),
    ]
    for rank in (3, 0, 2):
        desk.take(rank, "row", [bytearray([rank])], **asked)
    [(asker, values, blobs)] = desk.answers
    assert (asker, values["ranks"], blobs) == (0, [0, 2, 3], [bytearray([r]) for r in (0, 2, 3)])


def test_arrivals_are_passed_on_to_all_others(desk: Desk):
    desk.take(2, "arrive", visit=5, board="b")
    arrival = {"rank": 2, "visit": 5, "board": "b"}
    assert desk.told == [(rank, "arrive", arrival) for rank in (0, 1, 3)]


def test_each_of_several_ranks_that_ask_at_once_gets_its_rows(desk: Desk):
    for asker in (1, 2):
        desk.take(asker, "rows", request=1, board="b")
    for rank in range(4):
        for asker in (1, 2):
            desk.take(rank, "row", [bytearray([rank, asker])], asker=asker, board="b")
    assert {asker: blobs for asker, _, blobs in desk.answers} == {
        asker: [bytearray([rank, asker]) for rank in range(4)] for asker in (1, 2)
    }


def test_memory_that_a_lost_rank_was_to_make_is_made_by_the_next_that_asks(desk: Desk):
    desk.take(0, "memory", name="rings")
    desk.take(1, "memory", name="rings")
    assert [rank for rank, _, _ in desk.answers] == [0]
    desk.lose(0)
    assert [(rank, given["path"]) for rank, given, _ in desk.answers] == [(0, ""), (1, "")]
