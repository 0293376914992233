"""A live endpoint under attack: thousands of clients without credentials, while the run's messages pass.

Every kind of client is refused. The memory and descriptors for all of them together are bounded.
"""

import contextlib
import gc
import os
import random
import socket
import ssl
import struct
import threading
from pathlib import Path

import pytest
import torch
from links.ends import EncryptedEnds, TcpEnds
from processes import PATIENCE_S, wait_until

from paceline.links.frames import HEADER_BYTES, pack
from paceline.links.tcp import acceptor as module
from paceline.links.tcp.handshake import _HELLO, Channel
from paceline.links.tcp.identity import Identity

MEBIBYTE = 2**20
RANKS = 3


@pytest.fixture(params=[TcpEnds, EncryptedEnds], ids=["plain", "encrypted"])
def ends(request):
    ends = request.param(RANKS)
    yield ends
    ends.close()


class Attack:
    """Connections without authorization, of different kinds."""

    def __init__(self, ends, seed=0):
        self.target = ends.endpoints[0].address
        self.run_id = ends.endpoints[0].authenticator._run_id
        self.random = random.Random(seed)
        self.ways = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("with_")]
        self.stolen = Identity().context(server=False)
        self.stolen.verify_mode = ssl.CERT_NONE
        self.held = []
        """Connections that stay open."""

    def strike(self, number):
        self.ways[number % len(self.ways)]()

    def connect(self):
        made = socket.create_connection((self.target.host, self.target.port))
        made.settimeout(PATIENCE_S)
        return made

    def say(self, *words):
        with self.connect() as stranger, contextlib.suppress(OSError):
            for word in words:
                stranger.sendall(word)

    def hello(self, **changes):
        fields = {
            "magic": b"PLH2",
            "run": self.run_id,
            "generation": 0,
            "channel": 0,
            "name": b"1",
            "nonce": bytes(32),
        } | changes
        return _HELLO.pack(*fields.values())

    def with_nothing(self):
        self.connect().close()

    def with_noise(self):
        self.say(self.random.randbytes(self.random.randrange(1, 4000)))

    def with_a_browser(self):
        self.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    def with_half_a_hello(self):
        self.say(self.hello()[: self.random.randrange(1, _HELLO.size)])

    def with_a_hello_of_another_run(self):
        self.say(self.hello(run=self.random.randbytes(16)))

    def with_a_wrong_magic(self):
        self.say(self.hello(magic=self.random.randbytes(4)))

    def with_an_unknown_channel(self):
        self.say(self.hello(channel=self.random.randrange(len(Channel), 256)))

    def with_a_stolen_name_and_a_guessed_proof(self):
        self.say(self.hello(), self.random.randbytes(34))

    def with_an_unknown_name(self):
        self.say(self.hello(name=self.random.randbytes(16)), self.random.randbytes(34))

    def with_a_long_certificate(self):
        self.say(self.hello(), self.random.randbytes(32) + struct.pack("<H", 65_535), bytes(65_535))

    def with_frames_instead_of_a_hello(self):
        frame = bytearray(HEADER_BYTES)
        pack(memoryview(frame), 0, torch.zeros(4), tag=0, epoch=0)
        self.say(bytes(frame) + bytes(16))

    def with_a_huge_frame(self):
        frame = bytearray(HEADER_BYTES)
        pack(memoryview(frame), 0, torch.zeros(2**30, device="meta"), tag=0, epoch=0)
        self.say(bytes(frame) + bytes(2**16))

    def with_a_client_hello_of_tls_cut_short(self):
        self.say(
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
            + self.random.randbytes(self.random.randrange(500))
        )

    def with_another_certificate(self):
        with contextlib.suppress(OSError), self.stolen.wrap_socket(self.connect()) as stranger:
            stranger.sendall(self.hello())
            stranger.recv(1)

    def with_silence(self):
        self.held.append(self.connect())
        if len(self.held) > 200:
            self.held.pop(0).close()

    def close(self):
        for each in self.held:
            each.close()


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def refusals(ends):
    return sum(ends.endpoints[0].acceptor.refused.values())


@pytest.mark.parametrize(
    "times", [600, pytest.param(6000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_strangers_are_turned_away_by_the_thousand_while_messages_pass(ends, times):
    attack, before_bytes = Attack(ends), resident_bytes()
    for number in range(times):
        attack.strike(number)
        assert len(ends.endpoints[0].acceptor.pending) <= module.MOST_PENDING
        if number % 20 == 0:
            ends.send(1 + number // 20 % 2, 0, torch.full((1000,), float(number)))
            assert ends.recv(0, 1 + number // 20 % 2).tensor[999] == number
    attack.close()
    wait_until(lambda: refusals(ends) == times, "every stranger is counted as refused")
    assert [len(endpoint._streams) for endpoint in ends.endpoints] == [2, 1, 1], (
        "no stranger has a connection"
    )
    assert resident_bytes() - before_bytes < 64 * MEBIBYTE
    ends.send(0, 1, torch.ones(5))
    assert len(ends.recv(1, 0).tensor) == 5


def test_a_stranger_that_sends_without_end_is_cut_off_after_kilobytes(ends):
    attack, before_bytes, sent = Attack(ends), resident_bytes(), 0
    with attack.connect() as stranger, contextlib.suppress(ConnectionError):
        while sent < 256 * MEBIBYTE:
            sent += stranger.send(bytes(MEBIBYTE))
    assert sent < 64 * MEBIBYTE, "no more than the system's buffers hold"
    assert resident_bytes() - before_bytes < 32 * MEBIBYTE


def test_a_flood_of_connections_leaves_no_thread_and_no_file_behind(ends):
    attack = Attack(ends)
    files = len(os.listdir("/proc/self/fd"))
    crowd = [attack.connect() for _ in range(4 * module.MOST_PENDING)]
    ends.send(1, 0, torch.ones(3))
    assert torch.equal(ends.recv(0, 1).tensor, torch.ones(3)), "a rank gets through"
    for each in crowd:
        each.close()
    wait_until(
        lambda: not any(thread.name == "tcp-handshake" for thread in threading.enumerate()),
        "threads have ended",
    )
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files + 2, "their files are closed")
