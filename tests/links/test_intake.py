"""What a connection has brought that was not handed over, by the system's count."""

import os
import socket

import pytest
import zmq
from processes import wait_until

from paceline.links.credentials import Gate
from paceline.links.seats import bind_socket

SIZES = (0, 1, 100, 221, 222, 223, 254, 255, 256, 5000, 65536)
HANDSHAKE_BYTES = 2000
TOKEN = b"t" * 16


class House:
    """A guarded socket, and one who is let in."""

    def __init__(self, encrypt):
        self.contexts = [zmq.Context() for _ in range(2)]
        self.gate, friend = (Gate(context, encrypt=encrypt, token=TOKEN) for context in self.contexts)
        self.inbox, self.caller = self.contexts[0].socket(zmq.PULL), self.contexts[1].socket(zmq.PUSH)
        self.intake = self.gate.guard(self.inbox)
        address = bind_socket(self.inbox, "127.0.0.1")
        self.port = int(address.rpartition(":")[2])
        self.gate.admit({"7": friend.keys.public})
        friend.introduce(self.caller, "7", self.gate.keys.public)
        self.caller.connect(address)
        self.friend = friend

    def take(self):
        """Take a message, part by part; the file that it came by."""
        while True:
            part = self.inbox.recv(copy=False)
            fd = part.get(zmq.SRCFD)
            self.intake.took(fd, len(part.buffer))
            if not part.more:
                return fd

    def close(self):
        for gate, context in zip((self.gate, self.friend), self.contexts, strict=True):
            gate.close()
            context.destroy(linger=0)


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def house(request):
    house = House(request.param)
    yield house
    house.close()


def test_who_brings_what_is_taken_is_left_alone_to_the_byte(house):
    for _ in range(100):
        house.caller.send_multipart([bytes(size) for size in SIZES])
        house.take()
    assert house.intake.cut_off(house.port, HANDSHAKE_BYTES) == 0


def test_who_brings_what_nobody_takes_is_cut_off(house):
    house.caller.send(b"first")
    house.take()
    house.caller.send(bytes(10_000))
    wait_until(lambda: house.intake.cut_off(house.port, 9_000 + HANDSHAKE_BYTES - 1000), "it is cut off")
    assert house.intake.cut_off(house.port, 0) == 0, "and forgotten"


def test_a_file_that_has_the_number_of_one_that_was_closed_is_let_be(house):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        far.sendall(bytes(5000))
        assert near.recv(5000, socket.MSG_WAITALL) == bytes(5000)
        house.intake.opened(near.fileno())
        assert house.intake.cut_off(house.port, 0) <= 1  # the caller's own handshake, if that has been made
        near.sendall(b"still here")
        assert far.recv(100) == b"still here"
        far.close()


def test_files_that_are_no_connections_are_let_be(house):
    reading, writing = os.pipe()
    house.intake.opened(reading)
    os.close(writing)
    house.intake.opened(writing)
    house.intake.cut_off(house.port, 0)
    assert os.read(reading, 1) == b""
    os.close(reading)
