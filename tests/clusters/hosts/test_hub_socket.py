"""The hub's connections: letters of any size pass, and closing always ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from links.tcp.parties import connect
from processes import PATIENCE_S, wait_until

from paceline.clusters.hosts.hub_socket import HubSocket, Sender
from paceline.clusters.hosts.wire import LetterConnection
from paceline.clusters.process.channel import Letter
from paceline.links.tcp.handshake import Authenticator, Channel
from paceline.links.tcp.streams import open_stream

TERMS: dict[str, Any] = {"run_id": b"r" * 16, "token": b"t" * 16}
BLOB = bytes(range(256)) * 2**16  # 16 MiB
CLOSING_S = 30.0
"""Timeout for an operation that must end without intervention."""


class Ends:
    """A hub's socket, and the ranks that connect to it."""

    def __init__(self, *, encrypt: bool, ranks: int = 1) -> None:
        self.hub = HubSocket(bind="127.0.0.1", encrypt=encrypt, ports=None, **TERMS)
        self.ranks = [Authenticator(str(rank), encrypt=encrypt, **TERMS) for rank in range(ranks)]
        self.hub.admit({own.name: own.certificate for own in self.ranks})
        for own in self.ranks:
            own.admit({"hub": self.hub.address.certificate})

    def connect(self, rank: int = 0, channel: Channel = Channel.ASK) -> LetterConnection:
        connected = connect(self.ranks[rank], self.hub.address, "hub", channel)
        assert connected is not None
        return LetterConnection(open_stream(connected))

    def hear(self) -> tuple[Sender, Letter]:
        """The next letter that the hub receives."""
        found: list[Any] = []
        wait_until(lambda: found.extend(a for a in self.hub.receive(0.05) if a.letter) or found, "one comes")
        return found[0]


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(encrypt=request.param)
    yield made
    made.hub.close(linger_s=0.0)


def exchange(hub: HubSocket, connection: LetterConnection) -> list[Letter]:
    """Let both sides send and receive until a letter has arrived at the rank."""
    found: list[Letter] = []

    def poll() -> list[Letter]:
        list(hub.receive(0.0))
        connection.stream.is_readable = connection.stream.is_writable = True
        connection.flush()
        found.extend(connection.receive()[1])
        return found

    wait_until(poll, "a letter has arrived")
    return found


def test_a_letter_of_many_megabytes_arrives_whole_both_ways(ends: Ends):
    connection = ends.connect()
    writing = threading.Thread(target=write_all, args=(connection, "done", [BLOB, b""]))
    writing.start()
    sender, letter = ends.hear()
    writing.join(PATIENCE_S)
    assert sender == Sender(0, Channel.ASK)
    assert (letter.word, letter.values, letter.blobs) == ("done", {"a": 1}, [BLOB, b""])
    ends.hub.send(sender, "part", {"b": 2}, [BLOB])
    [answer] = exchange(ends.hub, connection)
    assert (answer.word, answer.values, answer.blobs) == ("part", {"b": 2}, [BLOB])
    connection.close()


def write_all(connection: LetterConnection, word: str, blobs: list[bytes]) -> None:
    connection.post(word, {"a": 1}, blobs)
    while connection.has_unsent and not connection.stream.is_broken:
        connection.stream.is_writable = True
        connection.flush()


def test_a_rank_that_sends_without_end_does_not_keep_the_hub_from_the_others():
    ends = Ends(encrypt=False, ranks=2)
    loud, quiet, is_over = ends.connect(0), ends.connect(1), threading.Event()

    def shout() -> None:
        while not is_over.is_set() and not loud.stream.is_broken:
            write_all(loud, "count", [])

    shouting = threading.Thread(target=shout)
    shouting.start()
    write_all(quiet, "hello", [])
    heard: set[int] = set()
    wait_until(
        lambda: heard.update(arrival.sender.rank for arrival in ends.hub.receive(0.05)) or heard == {0, 1},
        "both are heard",
    )
    is_over.set()
    ends.hub.close(linger_s=0.0)
    shouting.join(PATIENCE_S)
    for each in (loud, quiet):
        each.close()


def test_a_letter_to_a_rank_that_is_not_connected_is_dropped(ends: Ends):
    ends.hub.send(Sender(5, Channel.HEAR), "go")
    ends.hub.send(Sender(0, Channel.HEAR), "go")
    connection = ends.connect(channel=Channel.HEAR)
    list(ends.hub.receive(0.1))
    ends.hub.send(Sender(0, Channel.HEAR), "part")
    assert [letter.word for letter in exchange(ends.hub, connection)] == ["part"]
    connection.close()


def test_a_rank_that_connects_again_replaces_its_connection(ends: Ends):
    first = ends.connect()
    write_all(first, "one", [])
    assert ends.hear()[1].word == "one"
    second = ends.connect()
    write_all(second, "two", [])
    assert ends.hear()[1].word == "two"
    assert len(ends.hub._connections) == 1
    for each in (first, second):
        each.close()


def test_a_hub_that_closes_gives_up_what_a_rank_does_not_read(ends: Ends):
    connection = ends.connect()
    write_all(connection, "one", [])
    sender, _ = ends.hear()
    ends.hub.send(sender, "large", blobs=[BLOB, BLOB, BLOB])
    assert ends.hub._connections[sender].has_unsent, "it is more than the system's buffers hold"
    closing = threading.Thread(target=ends.hub.close, kwargs={"linger_s": 0.1}, daemon=True)
    closing.start()
    closing.join(CLOSING_S)
    assert not closing.is_alive()
    connection.close()
    ends.hub = Ends(encrypt=False).hub


@pytest.mark.parametrize("linger_s", [0.0, 5.0])
def test_a_hub_that_closes_while_ranks_leave_always_ends(linger_s: float):
    """A socket library that lingers for disconnected peers would hang here in one of about thirty rounds."""
    for _ in range(40):
        ends = Ends(encrypt=False, ranks=4)
        connections = [ends.connect(rank) for rank in range(4)]
        for connection in connections:
            write_all(connection, "beat", [])
        for sender, letter in ends.hub.receive(0.05):
            if letter is not None:
                ends.hub.send(sender, "beat")
        leaving = [threading.Thread(target=connection.close) for connection in connections]
        closing = threading.Thread(target=ends.hub.close, kwargs={"linger_s": linger_s}, daemon=True)
        for thread in (*leaving, closing):
            thread.start()
        for thread in (*leaving, closing):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
