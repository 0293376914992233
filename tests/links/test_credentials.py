import contextlib
import logging
import random
import socket

import pytest
import zmq
from processes import PATIENCE_S, wait_until

from paceline.errors import ConfigurationError
from paceline.links.credentials import Gate
from paceline.links.seats import bind_socket

TOKEN = b"0123456789abcdef"


class House:
    """A gate with a socket behind it, and callers from outside."""

    def __init__(self, encrypt):
        self.context, self.outside = zmq.Context(), zmq.Context()
        self.gate = Gate(self.context, encrypt=encrypt, token=b"" if encrypt else TOKEN)
        self.socket = self.context.socket(zmq.PULL)
        self.gate.guard(self.socket)
        self.address = bind_socket(self.socket, "127.0.0.1")
        self.others = [Gate(zmq.Context(), encrypt=encrypt, token=TOKEN)]
        self.callers = []

    @property
    def friend(self):
        return self.others[0]

    def admit(self, name="7"):
        self.gate.admit({name: self.friend.keys.public})

    def call(self, introduce, data=b"hello"):
        caller = self.outside.socket(zmq.PUSH)
        caller.linger = 0
        introduce(caller)
        caller.connect(self.address)
        with contextlib.suppress(zmq.Again):  # it has been refused already
            caller.send(data, zmq.NOBLOCK)
        self.callers.append(caller)

    def call_as_friend(self, name="7", data=b"hello"):
        self.call(lambda caller: self.friend.introduce(caller, name, self.gate.keys.public), data)

    def hear(self, timeout_s=PATIENCE_S):
        if not self.socket.poll(1000 * timeout_s):
            return None
        frame = self.socket.recv(copy=False)
        return frame.get("User-Id"), frame.bytes

    def close(self):
        self.outside.destroy(linger=0)
        self.socket.close(linger=0)
        for gate in (self.gate, *self.others):
            gate.close()
        self.context.term()


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def house(request):
    house = House(request.param)
    yield house
    house.close()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, logger="paceline")
    return lambda: [record.getMessage() for record in caplog.records]


def test_who_belongs_to_the_run_is_let_in_under_the_name_that_was_admitted(house, log):
    house.admit("7")
    house.call_as_friend("7")
    assert house.hear() == ("7", b"hello")
    assert log() == []


def test_who_comes_before_anybody_is_admitted_waits(house):
    house.call_as_friend()
    assert house.hear(timeout_s=0.2) is None
    house.admit()
    assert house.hear() == ("7", b"hello")


def wrong_token(house, caller):
    caller.plain_username, caller.plain_password = b"7", b"wrong"


def unknown_name(house, caller):
    caller.plain_username, caller.plain_password = b"8", TOKEN.hex().encode()


def own_keys(house, caller):
    caller.curve_publickey, caller.curve_secretkey = zmq.curve_keypair()
    caller.curve_serverkey = house.gate.keys.public or zmq.curve_keypair()[0]


def wrong_server_key(house, caller):
    caller.curve_publickey, caller.curve_secretkey = zmq.curve_keypair()
    caller.curve_serverkey = zmq.curve_keypair()[0]


def nothing_at_all(house, caller):
    pass


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in (unknown_name, own_keys, nothing_at_all)]


@pytest.mark.parametrize("introduce", [wrong_token, wrong_server_key, *SLOW])
def test_who_does_not_belong_to_the_run_is_refused_and_logged_once(house, log, introduce):
    house.admit()
    for _ in range(3):
        house.call(lambda caller: introduce(house, caller), b"intruder")
    wait_until(log, "the refusal is logged")
    house.call_as_friend()
    assert house.hear() == ("7", b"hello")
    assert house.hear(timeout_s=0.5) is None
    assert [text.startswith("refused a connection from") for text in log()] == [True]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.0\r\n\r\n" + bytes(100), random.Random(1).randbytes(1000)],
    ids=["browser", "noise"],
)
def test_garbage_is_refused_and_logged_once(house, log, data):
    house.admit()
    host, port = house.address.removeprefix("tcp://").split(":")
    callers = [socket.create_connection((host, int(port))) for _ in range(3)]
    for caller in callers:
        caller.send(data)
    wait_until(log, "the refusal is logged")
    house.call_as_friend()
    assert house.hear() == ("7", b"hello")
    assert [text.startswith("refused a connection from somebody") for text in log()] == [True]
    for caller in callers:
        caller.close()


def test_one_of_the_run_that_leaves_is_no_stranger(house, log):
    house.admit()
    house.call_as_friend()
    house.hear()
    house.callers[0].close()
    assert house.hear(timeout_s=0.6) is None
    assert log() == []


def test_keys_are_made_anew_for_each_gate():
    contexts = [zmq.Context() for _ in range(2)]
    gates = [Gate(context, encrypt=True, token=b"") for context in contexts]
    assert len({key for gate in gates for key in gate.keys}) == 4
    for gate in gates:
        gate.close()


def test_without_encryption_there_must_be_a_token():
    context = zmq.Context()
    with pytest.raises(ConfigurationError, match="token must not be empty without encryption"):
        Gate(context, encrypt=False, token=b"")
    context.term()
