import socket

import pytest
import zmq
from processes import wait_until

from paceline.links.callers import Callers
from paceline.links.intake import Intake


class Door:
    def __init__(self):
        self.context = zmq.Context()
        self.inbox = self.context.socket(zmq.PULL)
        self.inbox.curve_server = True  # with no gate, whoever has the public key is let in
        self.key, self.inbox.curve_secretkey = zmq.curve_keypair()
        self.callers = Callers(self.context, self.inbox, Intake(encrypt=True))
        self.port = self.inbox.bind_to_random_port("tcp://127.0.0.1")
        self.heard = 0

    def hear(self):
        self.heard += self.callers.hear()
        return self.heard

    def caller(self, *, knows_key=False):
        out = self.context.socket(zmq.PUSH)
        out.linger = 0
        if knows_key:
            out.curve_publickey, out.curve_secretkey = zmq.curve_keypair()
            out.curve_serverkey = self.key
        out.connect(f"tcp://127.0.0.1:{self.port}")
        return out


@pytest.fixture
def door():
    door = Door()
    yield door
    door.context.destroy(linger=0)


def test_who_sends_garbage_is_a_stranger(door):
    with socket.create_connection(("127.0.0.1", door.port)) as caller:
        caller.send(b"GET / HTTP/1.0\r\n\r\n" + bytes(100))
        wait_until(door.hear, "the stranger is heard of")
    assert door.heard == 1


def test_who_leaves_without_a_word_is_a_stranger(door):
    socket.create_connection(("127.0.0.1", door.port)).close()
    wait_until(door.hear, "the stranger is heard of")


def test_who_does_not_say_its_name_is_a_stranger(door):
    caller = door.caller()
    wait_until(door.hear, "the stranger is heard of")
    caller.close()


def test_who_was_let_in_and_leaves_is_none(door):
    caller = door.caller(knows_key=True)
    caller.send(b"x")
    assert door.inbox.recv() == b"x"
    caller.close()
    with socket.create_connection(
        ("127.0.0.1", door.port)
    ) as garbage:  # comes after: so the other has been counted
        garbage.send(b"GET / HTTP/1.0\r\n\r\n" + bytes(100))
        wait_until(door.hear, "the stranger is heard of")
    assert door.heard == 1
