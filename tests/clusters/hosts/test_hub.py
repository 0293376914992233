"""The hub and its ranks' clients over real sockets: messages, their order, and refusals."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
import torch
from processes import PATIENCE_S, wait_until
from refusals import has, raised

from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.hosts.driver import HubDriver
from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.hub_client import HubClient
from paceline.clusters.hosts.table import Member, Table, whereabouts
from paceline.clusters.process.letters import read_error, read_outcomes, write_error, write_outcome
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import DeadlineError, PacelineError, PeerLost, RunError, WorkerError
from paceline.links.memory.shared import SharedMemory
from paceline.links.operation import Activity
from paceline.links.tcp import PeerAddress
from paceline.links.tcp.handshake import Authenticator
from paceline.trace import Recorder

TOKEN, RUN = b"t" * 16, b"r" * 16
CLOSING_S = 30.0
"""Timeout for an operation that must end without intervention."""


@dataclass(frozen=True)
class Pretended:
    expendable: tuple[str, ...] = ()

    def roles(self, workers: int) -> tuple[str, ...]:
        return ("worker",) * workers


class Ends:
    """A hub in a thread, and the data with which two ranks connect to it."""

    def __init__(
        self,
        *,
        encrypt: bool,
        deadline_s: float = 20.0,
        share: bool = False,
        strategy: Pretended | None = None,
    ) -> None:
        self.share = share
        self.hub_is_closed = False
        self.job = Job(strategy=strategy or Pretended(), roles=("worker",) * 2, seed=0, steps=50)
        self.deadline_s = deadline_s
        terms = {"run_id": RUN, "token": TOKEN, "encrypt": encrypt}
        self.hub = Hub(self.job, bind="127.0.0.1", deadline_s=deadline_s, **terms)
        self.authenticators = [Authenticator(str(rank), **terms) for rank in range(2)]
        members = [
            Member(address=PeerAddress("", 0, own.certificate), where=whereabouts())
            for own in self.authenticators
        ]
        self.table = Table(hub=self.hub.address, members=members, **terms)
        for own in self.authenticators:
            own.admit(self.table.certificates)
        self.clients: list[HubClient] = []
        self.boards: list[StatusBoard] = []
        self.dead: list[tuple[int, str]] = []
        self.ended: list[list[Outcome] | PacelineError] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.ended.append(self.hub.work(self.table, self, None, share=self.share))
        except PacelineError as error:
            self.ended.append(error)

    def losses(self) -> Iterable[tuple[int, str]]:
        dead, self.dead = self.dead, []
        return dead

    def call(self, rank: int) -> HubClient:
        board = StatusBoard(SharedMemory.create("test", StatusBoard.nbytes(2)), 2)
        board.last_step = 50
        client = HubClient(
            rank,
            board,
            self.authenticators[rank],
            self.hub.address,
            deadline_s=self.deadline_s,
        )
        self.boards.append(board)
        self.clients.append(client)
        return client

    def finish(self, rank: int, result: torch.Tensor | None = None) -> None:
        outcome = Outcome(rank=rank, seconds=1.0, spans=Recorder(rank, "worker").pack(), result=result)
        self.clients[rank].tell("done", *write_outcome(outcome))

    def how_it_ended(self) -> list[Outcome] | PacelineError:
        self._thread.join(30)
        return self.ended[0]

    def close_hub(self) -> None:
        if not self.hub_is_closed:
            self.hub_is_closed = True
            self.hub.close()

    def close(self) -> None:
        self.hub.stop()
        self._thread.join(30)
        for client in self.clients:
            client.close()
        self.close_hub()


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(encrypt=request.param)
    yield made
    made.close()


def begin(ends: Ends) -> None:
    for rank in range(2):
        ends.call(rank).tell("ready")
    for client in ends.clients:
        client.wait_for_go()


def test_a_run_begins_when_all_are_ready_and_ends_when_all_are_done(ends: Ends):
    begin(ends)
    for rank in range(2):
        ends.finish(rank)
    outcomes = ends.how_it_ended()
    assert isinstance(outcomes, list)
    assert [outcome.rank for outcome in outcomes] == [0, 1]
    assert all(client.wait_to_part() is not None for client in ends.clients)


def test_a_rank_that_ends_is_known_to_the_others(ends: Ends):
    begin(ends)
    ends.finish(1)
    wait_until(lambda: ends.boards[0].status(1) is Status.FINISHED, "rank 0 knows that rank 1 has ended")


def test_updates_are_numbered_across_ranks(ends: Ends):
    begin(ends)
    numbers = [ends.clients[rank].ask("count", {"first": 0}).values["count"] for rank in (0, 1, 1, 0)]
    assert numbers == [1, 2, 3, 4]


def test_whoever_ends_the_run_goes_on_when_all_know_it(ends: Ends):
    begin(ends)
    ends.clients[0].ask("end_after", {"step": 4})
    assert [board.last_step for board in ends.boards] == [5, 5]


def test_rows_of_many_megabytes_come_whole_from_one_rank_through_the_hub_to_another(ends: Ends):
    begin(ends)
    rows = [bytes([rank + 1]) * 5_000_000 for rank in range(2)]
    for client, row in zip(ends.clients, rows, strict=True):
        client.takers["row"] = lambda letter, row=row: ({}, [row])
    assert ends.clients[1].ask("rows", {"board": "b"}).blobs == rows


def test_an_outcome_of_many_megabytes_arrives_whole(ends: Ends):
    begin(ends)
    weights = torch.arange(2_000_000, dtype=torch.float64)
    ends.finish(0, weights)
    ends.finish(1)
    outcomes = ends.how_it_ended()
    assert isinstance(outcomes, list)
    assert torch.equal(outcomes[0].result, weights)


def test_a_launchers_word_of_a_death_ends_the_run_with_rank_and_host(ends: Ends):
    begin(ends)
    ends.dead.append((1, "killed by SIGKILL"))
    error = ends.how_it_ended()
    assert isinstance(error, PeerLost)
    assert f"rank 1 is lost (on host {whereabouts().host_name}: killed by SIGKILL)" in str(error)
    parting = ends.clients[0].wait_to_part()
    assert parting is not None
    assert parting.values["error"]["type"] == "PeerLost"


def test_a_lost_rank_is_named_with_what_it_said_that_it_holds_to_the_other_ranks_too(ends: Ends):
    begin(ends)
    ends.clients[1].tell("holds", {"words": "stage 1 of 2: layers 4 … 7"})
    ends.clients[1].ask("count", {"first": 0})  # until the hub has received it
    ends.dead.append((1, "killed by SIGKILL"))
    error = ends.how_it_ended()
    assert str(error).startswith("rank 1 (stage 1 of 2: layers 4 … 7) is lost (on host")
    parting = ends.clients[0].wait_to_part()
    assert parting is not None
    assert str(read_error(parting.values["error"])) == str(error)


def test_what_a_lost_rank_has_told_is_in_its_outcome():
    made = Ends(encrypt=False, strategy=Pretended(("worker",)))
    try:
        begin(made)
        update = {"step": 1, "seconds": 0.5, "loss": math.nan, "samples": 4, "metric": None, "extra": {}}
        HubDriver(1, 2, made.boards[1], made.clients[1]).tell_news({"updates": [update]})
        made.clients[1].ask("count", {"first": 0})  # until the hub has received it
        made.dead.append((1, "killed by SIGKILL"))
        made.finish(0)
        outcomes = made.how_it_ended()
        assert isinstance(outcomes, list)
        assert str(outcomes[1].updates) == str([update])
        assert outcomes[1].lost == [(1, 0)]
    finally:
        made.close()


def test_a_hub_that_is_stopped_says_so(ends: Ends):
    ends.hub.stop()
    error = ends.how_it_ended()
    assert isinstance(error, RunError)


def test_garbage_from_a_rank_ends_that_connection_and_is_logged(ends: Ends, caplog: pytest.LogCaptureFixture):
    begin(ends)
    with caplog.at_level(logging.WARNING, "paceline"):
        stream = ends.clients[1]._asks._connection.stream
        assert stream.write(memoryview(b""), memoryview(b"\xc1\xff not a letter at all"))
        wait_until(lambda: caplog.records, "it is refused")
        assert ends.clients[0].ask("count", {"first": 0}).values["count"] == 1, "the others are served"
    assert caplog.messages == ["closed a connection of rank 1 to the hub: not a letter: wrong magic number"]


def test_a_rank_hears_with_its_beats_that_the_rank_it_waits_for_computes(ends: Ends):
    """The ranks of this test are one process, which computes here."""
    begin(ends)
    ends.boards[0].note_doing(0, Activity.receive, [1])

    def computes() -> bool:
        for _ in range(10_000):
            pass
        return ends.boards[0].awaited_work(0) > 0

    while not computes():
        pass
    assert ends.boards[1].awaited_work(1) == 0, "it waits for nobody"


def test_a_rank_that_falls_silent_is_lost():
    made = Ends(encrypt=False, deadline_s=6.0)
    try:
        begin(made)
        made.clients[1]._closing.set()  # its thread ends, and with it the beats
        error = made.how_it_ended()
        assert isinstance(error, PeerLost)
        assert "no sign of life for 3 s" in str(error)
    finally:
        made.close()


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
def test_a_rank_that_has_closed_its_connections_is_lost_before_it_would_be_silent(encrypt, monkeypatch):
    """As the system closes them when a process is killed."""
    monkeypatch.setattr("paceline.clusters.hosts.hub.patience_s", lambda _: math.inf)
    made = Ends(encrypt=encrypt, deadline_s=600.0)
    try:
        begin(made)
        made.clients[1].close()
        error = made.how_it_ended()
        assert isinstance(error, PeerLost)
        assert error.rank == 1
    finally:
        made.close()


def test_a_rank_misses_a_hub_that_has_closed_its_connections_before_it_would_be_silent(monkeypatch):
    monkeypatch.setattr("paceline.clusters.hosts.hub_client.patience_s", lambda _: math.inf)
    made = Ends(encrypt=False)
    try:
        begin(made)
        made.hub.stop()
        made.how_it_ended()
        made.close_hub()
        wait_until(lambda: made.clients[0].cut, "rank 0 misses the hub")
        assert made.boards[0].status(1) is Status.LOST
    finally:
        made.close()


def test_a_hub_that_falls_silent_leaves_the_ranks_without_hope():
    made = Ends(encrypt=False, deadline_s=6.0)
    try:
        begin(made)
        made.hub.stop()
        made.how_it_ended()
        wait_until(lambda: made.clients[0].cut, "rank 0 misses the hub")
        assert made.boards[0].status(1) is Status.LOST
        with raised(PeerLost, reason=has("driver")):
            made.clients[0].check()
    finally:
        made.close()


def test_a_last_letter_that_is_lost_ends_the_run_instead_of_keeping_it_waiting():
    made = Ends(encrypt=False, deadline_s=2.0)
    try:
        begin(made)
        made.finish(0)
        waits = threading.Thread(target=made.clients[1].wait_to_part)
        waits.start()  # without a word on how it ended
        error = made.how_it_ended()
        assert isinstance(error, PeerLost)
        assert "how it ended did not arrive within 2 s" in str(error)
        waits.join(PATIENCE_S)
        assert not waits.is_alive()
    finally:
        made.close()


def test_a_rank_that_waits_for_the_start_of_a_run_hears_that_there_is_none(ends: Ends):
    ends.call(0).tell("ready")
    wait_until(lambda: ends.hub._presence.connected, "the hub has heard rank 0")
    ends.hub.stop()
    error = ends.how_it_ended()
    assert isinstance(error, RunError)
    ends.hub.give_up(error)
    with raised(RunError, "rank 0"):
        ends.clients[0].wait_for_go()


def test_a_rank_that_never_connects_is_named_after_the_deadline_however_long_others_may_prepare():
    made = Ends(encrypt=False, deadline_s=2.0)
    try:
        made.call(0).tell("ready")
        error = made.how_it_ended()
        assert isinstance(error, DeadlineError)
        assert f"the driver waited 2 s in starting for rank 1 on {whereabouts().host_name}" in str(error)
    finally:
        made.close()


def test_a_run_that_can_spare_a_rank_begins_without_one_that_never_connects():
    made = Ends(encrypt=False, deadline_s=2.0, strategy=Pretended(("worker",)))
    try:
        made.call(0).tell("ready")
        made.clients[0].wait_for_go()
        assert made.boards[0].status(1) is Status.LOST
        made.finish(0)
        outcomes = made.how_it_ended()
        assert isinstance(outcomes, list)
        assert outcomes[1].lost == [(1, 0)]
    finally:
        made.close()


def test_a_rank_that_connects_after_another_was_lost_knows_of_it_when_the_run_begins():
    made = Ends(encrypt=False, strategy=Pretended(("worker",)))
    try:
        made.dead.append((1, "killed by SIGKILL"))
        wait_until(lambda: made.hub._board.status(1) is Status.LOST, "the hub knows that rank 1 is lost")
        made.call(0).tell("ready")
        made.clients[0].wait_for_go()
        assert made.boards[0].status(1) is Status.LOST
    finally:
        made.close()


def test_a_rank_that_was_given_up_and_comes_back_does_not_end_the_run():
    made = Ends(encrypt=False, strategy=Pretended(("worker",)))
    try:
        begin(made)
        made.clients[0].tell("lost", {"rank": 1})
        wait_until(lambda: made.hub._board.status(1) is Status.LOST, "the hub has given up rank 1")
        made.clients[1].tell("error", write_error(1, 7, WorkerError(1, 7, "Traceback")))
        made.finish(0)
        outcomes = made.how_it_ended()
        assert isinstance(outcomes, list)
        assert outcomes[1].lost == [(1, 0)]
        assert made.clients[1].wait_to_part() is not None
    finally:
        made.close()


def test_a_rank_that_is_slow_to_hear_gets_the_outcomes_of_all_whole():
    made, awake = Ends(encrypt=False, share=True), threading.Event()
    try:
        begin(made)
        made.clients[1].takers["arrive"] = lambda letter: awake.wait(PATIENCE_S) and None
        made.clients[0].tell("arrive", {"visit": 1, "board": "b"})  # from now on rank 1 receives nothing
        for rank in range(2):
            made.finish(rank, result=torch.full((2_000_000,), rank, dtype=torch.float64))
        assert isinstance(made.how_it_ended(), list)
        closing = threading.Thread(target=made.close_hub)
        closing.start()
        closing.join(1.5)  # the hub gives its ranks more than this
        awake.set()
        closing.join(PATIENCE_S)
        parting = made.clients[1].wait_to_part()
        assert parting is not None
        assert [float(each.result.mean()) for each in read_outcomes(parting.values, parting.blobs)] == [0, 1]
    finally:
        awake.set()
        made.close()


def test_a_client_whose_thread_is_stuck_is_closed_after_the_deadline():
    made, released = Ends(encrypt=False), threading.Event()
    try:
        client = made.call(0)
        made.clients.clear()
        listening, client._deadline_s = client._thread, 0.05
        client._thread = stuck = threading.Thread(target=released.wait, daemon=True)
        stuck.start()
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(CLOSING_S)
        assert not closing.is_alive()
    finally:
        released.set()
        for thread in (stuck, closing, listening):
            thread.join(PATIENCE_S)
        made.close()
