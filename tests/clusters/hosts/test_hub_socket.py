"""The hub's socket keeps little for whoever is there, and nothing for a stranger."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from processes import PATIENCE_S, wait_until

from paceline.clusters.hosts import wire
from paceline.clusters.hosts.hub_socket import HubSocket
from paceline.clusters.hosts.wire import ASKING, HEARING, LETTER_BYTES, write_letter
from paceline.links.credentials import Gate

TOKEN = b"t" * 16
MEBIBYTE = 2**20
GARBAGE_BYTES = 64 * MEBIBYTE
FEW_BYTES = 20 * MEBIBYTE
COMMAND, MESSAGE = 0x06, 0x02  # flags of a frame whose length is written in eight bytes


class Held:
    """The process with both sockets, as seen from here."""

    def __init__(self, public_key: bytes) -> None:
        script = str(Path(__file__).with_name("held_sockets.py"))
        self.process = subprocess.Popen(
            [sys.executable, script, public_key.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seats = self._answer()

    def ask(self, word: str) -> int:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return int(self._answer())

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class Caller:
    """One who may have the run's credentials."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gates = {
            encrypt: Gate(self._new_context(), encrypt=encrypt, token=TOKEN) for encrypt in (True, False)
        }

    def _new_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        self._contexts = [*getattr(self, "_contexts", []), zmq.Context()]
        return self._contexts[-1]

    def connect(
        self, encrypt: bool, address: str, key: str, name: bytes = ASKING + b"0"
    ) -> zmq.Socket[bytes]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.sndhwm = 0
        dealer.linger = 0
        dealer.reconnect_ivl = -1
        dealer.routing_id = name
        self.gates[encrypt].introduce(dealer, "0", key.encode())
        dealer.connect(address)
        return dealer

    def close(self) -> None:
        self.context.destroy(linger=0)
        for gate, context in zip(self.gates.values(), self._contexts, strict=True):
            gate.close()
            context.term()


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    made = Caller()
    yield made
    made.close()


@pytest.fixture(scope="module")
def held(caller: Caller) -> Iterator[Held]:
    made = Held(caller.gates[True].keys.public)
    yield made
    made.process.kill()
    made.process.communicate()


def address_of(text: str) -> tuple[str, int]:
    host, port = text.removeprefix("tcp://").split(":")
    return host, int(port)


def is_cut(stranger: socket.socket, data: bytes) -> bool:
    """Whether the other side ends the connection, at the latest when all is sent."""
    stranger.settimeout(PATIENCE_S)
    try:
        stranger.sendall(data)
        while stranger.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
@pytest.mark.parametrize("flags", [COMMAND, MESSAGE], ids=["command", "message"])
def test_a_stranger_is_cut_off_after_kilobytes(held: Held, encrypt: bool, flags: int):
    before_bytes = held.ask("reset")
    mechanism = (b"CURVE" if encrypt else b"PLAIN").ljust(20, b"\0")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism + bytes(32)
    with socket.create_connection(address_of(held.seats[0 if encrypt else 1][0])) as stranger:
        assert is_cut(stranger, greeting + struct.pack(">BQ", flags, GARBAGE_BYTES) + bytes(GARBAGE_BYTES))
    assert held.ask("peak") - before_bytes < 4 * MEBIBYTE


class Valve:
    """A way to an address through which a little goes at a time."""

    def __init__(self, address: str) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self._far = address_of(address)

    def open(self) -> None:
        self.listener.settimeout(PATIENCE_S)
        self.near, _ = self.listener.accept()
        self.far = socket.create_connection(self._far)
        threading.Thread(target=self._back, daemon=True).start()

    def _back(self) -> None:
        try:
            while data := self.far.recv(2**16):
                self.near.sendall(data)
        except OSError:
            pass

    def forward(self, most_bytes: int) -> bool:
        """Pass so much on; whether the other side took it."""
        left = most_bytes
        try:
            while left > 0 and (data := self.near.recv(min(left, 2**16))):
                self.far.sendall(data)
                left -= len(data)
        except OSError:
            return False
        return True

    def close(self) -> None:
        for each in (self.listener, self.near, self.far):
            each.close()


@pytest.mark.parametrize(
    "encrypt", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["encrypted", "plain"]
)
def test_a_rank_that_never_ends_a_message_is_cut_off(held: Held, caller: Caller, encrypt: bool):
    address, key = held.seats[0 if encrypt else 1]
    before_bytes = held.ask("reset")
    valve = Valve(address)
    dealer = caller.connect(encrypt, valve.address, key, HEARING + b"0")
    part, parts = bytes(60_000), GARBAGE_BYTES // 60_000
    dealer.send_multipart([part] * parts, copy=False)
    valve.open()
    passed = 0
    while passed < GARBAGE_BYTES - MEBIBYTE and valve.forward(2 * MEBIBYTE):
        passed += 2 * MEBIBYTE
        assert held.ask("peak") - before_bytes < FEW_BYTES
    assert passed < GARBAGE_BYTES // 2
    valve.close()
    dealer.close()


@pytest.mark.parametrize(
    "encrypt", [pytest.param(True, marks=pytest.mark.slow), False], ids=["encrypted", "plain"]
)
def test_of_letters_that_a_rank_begins_and_never_ends_one_is_kept(held: Held, caller: Caller, encrypt: bool):
    address, key = held.seats[0 if encrypt else 1]
    before_bytes = held.ask("reset")
    dealer = caller.connect(encrypt, address, key)
    head_bytes = LETTER_BYTES // 2
    for number in range(GARBAGE_BYTES // 2**16):
        offset = number % 16 * 2**16  # sixteen pieces, then another letter
        dealer.send(wire._PREFIX.pack(b"PLL1", head_bytes, LETTER_BYTES, offset) + bytes(2**16))
    dealer.send_multipart(list(write_letter("last")))
    assert dealer.poll(1000 * PATIENCE_S), "it has heard all"
    assert held.ask("peak") - before_bytes < FEW_BYTES
    dealer.close()


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def own(request: pytest.FixtureRequest, caller: Caller) -> Iterator[tuple[HubSocket, zmq.Socket[bytes]]]:
    """A hub's socket of this process, and one who may talk to it."""
    hub = HubSocket(bind="127.0.0.1", encrypt=request.param, token=TOKEN, ports=None)
    hub.admit({"0": caller.gates[True].keys.public})
    dealer = caller.connect(request.param, hub.seat.address, hub.seat.public_key.decode())
    yield hub, dealer
    dealer.close()
    hub.close(linger_s=0.0)


def test_somebody_who_sends_without_end_does_not_keep_the_hub_listening(own: tuple[HubSocket, Any]):
    hub, dealer = own
    [piece] = write_letter("count")
    for _ in range(1000):
        dealer.send(piece)
    for heard, _ in enumerate(hub.receive(0.1)):
        dealer.send(piece)
        dealer.send(piece)
        assert heard < 10**5, "it would listen for ever"


def test_a_letter_of_many_megabytes_arrives_whole_both_ways(own: tuple[HubSocket, Any]):
    hub, dealer = own
    blob = bytes(range(256)) * 2**16  # 16 MiB
    for piece in write_letter("done", {"a": 1}, [blob, b""]):
        dealer.send(piece)
    letters: list[Any] = []
    wait_until(
        lambda: letters.extend(a.letter for a in hub.receive(0.1) if a.letter) or letters, "it has come"
    )
    assert [(letter.word, letter.values, letter.blobs) for letter in letters] == [
        ("done", {"a": 1}, [blob, b""])
    ]
    hub.send(ASKING + b"0", "part", {"b": 2}, [blob])
    reader, found = wire.LetterReader(), None
    while found is None:
        assert dealer.poll(1000 * PATIENCE_S)
        found = reader.take(dealer.recv(copy=False).buffer)
    assert (found.word, found.values, found.blobs) == ("part", {"b": 2}, [blob])
