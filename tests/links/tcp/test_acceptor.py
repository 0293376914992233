"""Unknown clients: their cost, and the log."""

import contextlib
import logging
import random
import socket
import struct
import threading

import pytest
from links.tcp.parties import authenticator, connect
from processes import PATIENCE_S, wait_until

from paceline.links.tcp import acceptor as module
from paceline.links.tcp.acceptor import Acceptor
from paceline.links.tcp.address import PeerAddress, listen
from paceline.links.tcp.handshake import Authenticator

CLOSING_S = 30.0
"""Timeout for an operation that must end without intervention."""


class Door:
    """An acceptor, and one process that belongs to the run."""

    def __init__(self, encrypt):
        self.own = authenticator("0", encrypt=encrypt)
        self.friend = authenticator("1", encrypt=encrypt)
        self.friend.admit({"0": self.own.certificate})
        listener = listen("127.0.0.1")
        self.address = PeerAddress(*listener.getsockname()[:2], self.own.certificate)
        self.inside = []
        self.acceptor = Acceptor(listener, self.own, self._welcome)
        self.strangers = []

    def _welcome(self, peer, connected):
        Authenticator.answer(connected, is_open=True)
        self.inside.append((peer, connected))

    def open(self):
        self.own.admit({"1": self.friend.certificate})
        self.acceptor.start()

    def call(self):
        return connect(self.friend, self.address, "0")

    def stranger(self, data=b""):
        made = socket.create_connection((self.address.host, self.address.port))
        made.settimeout(PATIENCE_S)
        self.strangers.append(made)
        with contextlib.suppress(OSError):  # it has already been refused
            made.sendall(data)
        return made

    def close(self):
        self.acceptor.close()
        for each in (*self.strangers, *(connected for _, connected in self.inside)):
            each.close()


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def door(request):
    door = Door(request.param)
    yield door
    door.close()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, logger="paceline")
    return lambda: [record.getMessage() for record in caplog.records]


def is_turned_away(stranger):
    try:
        while stranger.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def handshakes():
    return [thread for thread in threading.enumerate() if thread.name == "tcp-handshake"]


def test_a_process_that_connects_before_the_door_is_open_waits(door):
    calling = threading.Thread(target=lambda: door.call().close())
    calling.start()
    calling.join(0.2)
    assert calling.is_alive()
    door.open()
    calling.join(PATIENCE_S)
    wait_until(lambda: door.inside, "it is let in")


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.0\r\n\r\n" + bytes(100), random.Random(1).randbytes(1000)],
    ids=["browser", "noise"],
)
def test_garbage_is_refused_and_logged_once(door, log, data):
    door.open()
    for _ in range(3):
        assert is_turned_away(door.stranger(data))
    door.call().close()
    wait_until(lambda: sum(door.acceptor.refused.values()) >= 3, "all are counted")
    assert [text.startswith("refused a connection from 127.0.0.1, which ") for text in log()] == [True]


def test_a_stranger_that_says_nothing_is_turned_away_in_time(door, log, monkeypatch):
    monkeypatch.setattr(module, "ACCEPT_S", 0.2)
    door.open()
    assert is_turned_away(door.stranger())
    wait_until(log, "it is logged")
    assert log() == ["refused a connection from 127.0.0.1, which did not identify itself in time"]


def test_a_stranger_that_says_a_byte_now_and_then_gets_no_more_time(door, monkeypatch):
    monkeypatch.setattr(module, "ACCEPT_S", 0.5)
    monkeypatch.setattr(module, "_CHECK_S", 0.05)
    door.open()
    stranger, is_away = door.stranger(), threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            while not is_away.wait(0.02):
                stranger.send(b"P")

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert is_turned_away(stranger)
    is_away.set()
    dripping.join(PATIENCE_S)


def test_a_flood_is_bounded_and_a_process_of_the_run_gets_through(door):
    door.open()
    for _ in range(3 * module.MOST_PENDING):
        door.stranger(b"\x16\x03")
        assert len(door.acceptor.pending) <= module.MOST_PENDING
    assert is_turned_away(door.strangers[0]), "the oldest is closed to make room"
    door.call().close()
    wait_until(lambda: door.inside, "it is let in")
    assert len(handshakes()) <= module.MOST_PENDING + 2


def test_a_process_of_the_run_that_leaves_is_not_logged(door, log):
    door.open()
    door.call().close()
    door.stranger().close()  # as if killed before it could identify itself
    wait_until(lambda: sum(door.acceptor.refused.values()) == 1, "it is counted")
    assert log() == []


def test_a_stranger_that_has_left_before_its_turn_does_not_stop_the_acceptor(door):
    """It connects, sends data and resets the connection, all before it is accepted."""
    for _ in range(20):
        stranger = door.stranger(b"\x16\x03\x01 left in the buffer")
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    door.open()
    wait_until(lambda: sum(door.acceptor.refused.values()) == 20, "all are counted")
    door.call().close()
    wait_until(lambda: door.inside, "a process of the run is let in")


def test_closing_ends_handshakes_that_have_begun_and_leaves_no_thread(door, log):
    door.open()
    for _ in range(20):
        door.stranger(b"\x16")
    wait_until(lambda: len(handshakes()) >= 20, "20 handshakes have begun")
    door.acceptor.close()
    assert not handshakes(), "their threads have ended"
    assert log() == []
    door.acceptor = Acceptor(listen("127.0.0.1"), door.own, door._welcome)


def test_closing_does_not_wait_longer_than_its_limit_for_an_acceptor_that_is_stuck(door, monkeypatch):
    stuck, released, wrap = threading.Event(), threading.Event(), door.own.wrap_accepted

    def wrap_when_released(accepted):
        stuck.set()
        released.wait(PATIENCE_S)
        return wrap(accepted)

    monkeypatch.setattr(door.own, "wrap_accepted", wrap_when_released)
    door.open()
    door.stranger()
    assert stuck.wait(PATIENCE_S)
    monkeypatch.setattr(module, "ACCEPT_S", 0.05)
    accepting = door.acceptor._thread
    closing = threading.Thread(target=door.acceptor.close, daemon=True)
    closing.start()
    closing.join(CLOSING_S)
    try:
        assert not closing.is_alive()
    finally:
        released.set()
        for thread in (accepting, closing):
            thread.join(PATIENCE_S)
    assert not accepting.is_alive()
    door.acceptor = Acceptor(listen("127.0.0.1"), door.own, door._welcome)
