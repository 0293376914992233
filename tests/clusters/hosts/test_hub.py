"""The hub and its ranks' clients, over real sockets: what is said, by whom, and what is refused."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
import torch
import zmq
from processes import PATIENCE_S, wait_until

from paceline.clusters.hosts.driver import HubDriver
from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.hub_client import HubClient
from paceline.clusters.hosts.table import Member, Table, whereabouts
from paceline.clusters.hosts.wire import write_letter
from paceline.clusters.job import Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.process.letters import read_error, read_outcomes, write_outcome
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import PacelineError, PeerLost, RunError
from paceline.links.credentials import Gate
from paceline.links.memory import SharedMemory
from paceline.links.seats import Seat
from paceline.trace import Recorder

TOKEN = b"t" * 16


@dataclass(frozen=True)
class Pretended:
    expendable: tuple[str, ...] = ()

    def roles(self, workers: int) -> tuple[str, ...]:
        return ("worker",) * workers


class Ends:
    """A hub in a thread, and what two ranks need to reach it."""

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
        self.hub = Hub(self.job, bind="127.0.0.1", encrypt=encrypt, token=TOKEN, deadline_s=deadline_s)
        self.contexts: list[zmq.Context[zmq.Socket[bytes]]] = [zmq.Context() for _ in range(2)]
        self.gates = [Gate(context, encrypt=encrypt, token=TOKEN) for context in self.contexts]
        members = [Member(seat=Seat("", gate.keys.public), where=whereabouts()) for gate in self.gates]
        self.table = Table(run_id=b"r" * 16, token=TOKEN, encrypt=encrypt, hub=self.hub.seat, members=members)
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
            self.contexts[rank],
            self.gates[rank],
            self.hub.seat,
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
        for gate, context in zip(self.gates, self.contexts, strict=True):
            gate.close()
            context.destroy(linger=0)


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
    ends.clients[1].ask("count", {"first": 0})  # until the hub has heard it
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
        made.clients[1].ask("count", {"first": 0})  # until the hub has heard it
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


def test_garbage_and_a_false_name_are_refused_and_logged_once(ends: Ends, caplog: pytest.LogCaptureFixture):
    begin(ends)
    with caplog.at_level(logging.WARNING, "paceline"):
        for _ in range(50):
            ends.clients[1]._asks._socket.send_multipart([b"\xc1\xff not msgpack"])
            ends.clients[1]._asks._socket.send_multipart([b"\x01"])
        liar = ends.contexts[0].socket(zmq.DEALER)
        liar.routing_id = b"ask-7"
        ends.gates[0].introduce(liar, "0", ends.hub.seat.public_key)
        liar.connect(ends.hub.seat.address)
        for _ in range(50):
            for piece in write_letter("count", {"request": 1, "first": 0}):
                liar.send(piece)
        wait_until(lambda: len(caplog.records) == 2, "both are refused")
        assert ends.clients[1].ask("count", {"first": 0}).values["count"] == 1
    assert len(caplog.records) == 2
    liar.close(linger=0)


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


def test_a_hub_that_falls_silent_leaves_the_ranks_without_hope():
    made = Ends(encrypt=False, deadline_s=6.0)
    try:
        begin(made)
        made.hub.stop()
        made.how_it_ended()
        wait_until(lambda: made.clients[0].cut, "rank 0 misses the hub")
        assert made.boards[0].status(1) is Status.LOST
        with pytest.raises(PeerLost, match="the driver of the run is gone"):
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
    wait_until(lambda: ends.hub._hearing, "the hub has heard rank 0")
    ends.hub.stop()
    error = ends.how_it_ended()
    assert isinstance(error, RunError)
    ends.hub.give_up(error)
    with pytest.raises(RunError, match="the run ended before rank 0 was told to begin"):
        ends.clients[0].wait_for_go()


def test_a_rank_that_is_slow_to_hear_gets_the_outcomes_of_all_whole():
    made, awake = Ends(encrypt=False, share=True), threading.Event()
    try:
        begin(made)
        made.clients[1].takers["arrive"] = lambda letter: awake.wait(PATIENCE_S) and None
        made.clients[0].tell("arrive", {"visit": 1, "board": "b"})  # from now on rank 1 hears nothing
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
