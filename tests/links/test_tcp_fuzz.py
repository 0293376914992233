"""A live endpoint under fire: broken chunks from one who has the run's credentials, and strangers who have none."""

import contextlib
import itertools
import logging
import socket
import struct

import numpy as np
import pytest
import torch
import zmq
from links.ends import EncryptedEnds, TcpEnds

from paceline.links.chunks import CHUNK_BYTES, FIRST, FIRST_BYTES, MORE, PREFIX_BYTES, TAKEN, pack_prefix
from paceline.links.frames import HEADER_BYTES, pack

BROKEN = {False: 10_500, True: 1_500}  # chunks; fewer where each is encrypted
FRIEND, TRAITOR = 1, 2  # both are ranks of the run; only the first behaves
BEFORE_SHAPE = PREFIX_BYTES + 32  # where in a first chunk the shape begins
REASONS = {
    "a prefix of a wrong length",
    "no prefix of ours",
    "a chunk of another run",
    "a chunk of no known kind",
    "a chunk out of turn",
    "a chunk that had come before",
    "more consumed than was sent",
    "a payload where none belongs",
    "the rest of no message",
    "a payload of a wrong length",
    "no header of ours",
    "a message too large to be one",
    "a chunk of more than two parts",
}


class Attack:
    """Makes chunks each of which has something wrong with it."""

    def __init__(self, run_id, seed=0):
        self.run_id = run_id
        self.sound = {tensor.numel(): self.first(tensor) for tensor in (torch.zeros(4), torch.zeros(0))}
        self.rng = np.random.default_rng(seed)
        self.ways = [getattr(self, name) for name in dir(self) if name.startswith("with_")]

    def __iter__(self):
        while True:
            yield self.ways[self.rng.integers(len(self.ways))]()

    def noise(self, most=400):
        return self.rng.bytes(int(self.rng.integers(1, most)))

    def first(self, tensor):
        """The first chunk of a message, as it should be."""
        data = bytearray(FIRST_BYTES)
        pack_prefix(data, FIRST, self.run_id, 0, 0)
        pack(memoryview(data), PREFIX_BYTES, tensor, tag=0, epoch=0)
        return data

    def prefix(self, kind=FIRST, number=0, taken=0, run_id=None, count=4):
        """One that would do, as the first of the traitor's."""
        data = bytearray(self.sound[count][: FIRST_BYTES if kind == FIRST else PREFIX_BYTES])
        pack_prefix(data, kind, run_id or self.run_id, number, taken)
        return data

    def with_noise_alone(self):
        return [self.noise()]

    def with_noise_in_parts(self):
        return [self.noise() for _ in range(self.rng.integers(1, 5))]

    def with_noise_of_the_right_length(self):
        return [self.rng.bytes(int(self.rng.choice([PREFIX_BYTES, FIRST_BYTES]))), self.noise()]

    def with_a_truncated_prefix(self):
        return [self.prefix()[: self.rng.integers(FIRST_BYTES)], bytes(16)]

    def with_a_long_prefix(self):
        return [self.prefix() + self.noise(), bytes(16)]

    def with_a_wrong_magic(self):
        data = self.prefix()
        data[self.rng.integers(4)] ^= int(self.rng.integers(1, 256))
        return [data, bytes(16)]

    def with_another_run(self):
        return [self.prefix(run_id=self.rng.bytes(16)), bytes(16)]

    def with_a_wrong_kind(self):
        data = self.prefix(int(self.rng.choice([MORE, TAKEN])))
        data[4] = self.rng.integers(TAKEN + 1, 256)
        return [data]

    def with_a_number_that_is_not_next(self):
        return [self.prefix(number=int(self.rng.integers(1, 2**63))), bytes(16)]

    def with_more_consumed_than_sent(self):
        return [self.prefix(TAKEN, taken=int(self.rng.integers(1, 2**63)))]

    def with_a_payload_to_what_has_none(self):
        return [self.prefix(TAKEN), self.noise()]

    def with_an_empty_payload(self):
        return [self.prefix(count=0), b""]

    def with_the_rest_of_nothing(self):
        return [self.prefix(MORE), self.noise()]

    def with_a_payload_too_short_or_too_long(self):
        return [self.prefix(), bytes(int(self.rng.choice([1, 2, 3, 5, 15, 17, 20, 400])))]

    def with_no_payload(self):
        return [self.prefix()]

    def with_too_many_parts(self):
        return [self.prefix(), bytes(16), *[self.noise()] * int(self.rng.integers(1, 20))]

    def with_noise_for_a_header(self):
        return [self.prefix()[:PREFIX_BYTES] + self.rng.bytes(HEADER_BYTES), bytes(16)]

    def with_a_wrong_dtype(self):
        data = self.prefix()
        data[PREFIX_BYTES + 4] = self.rng.integers(10, 256)
        return [data, bytes(16)]

    def with_another_size_of_element(self):
        data = self.prefix()
        data[PREFIX_BYTES + 4] = self.rng.choice([1, 2, 3, 4, 6, 7, 8, 9])  # those that have not four bytes
        return [data, bytes(16)]

    def with_a_wrong_number_of_dimensions(self):
        data = self.prefix()
        data[PREFIX_BYTES + 5] = self.rng.choice([0, 2, 3, 4, 5, 200])
        return [data, bytes(16)]

    def with_a_wrong_shape(self):
        data = self.prefix()
        wrong = int(self.rng.choice([-4, 0, 3, 5, 2**62]))
        struct.pack_into("<q", data, BEFORE_SHAPE, wrong)
        return [data, bytes(16)]

    def with_more_bytes_than_memory(self):
        return [self.first(torch.zeros(2**40, device="meta")), bytes(16)]


def good_messages(seed=1):
    """Small ones and ones of several chunks."""
    rng = np.random.default_rng(seed)
    for number in itertools.count():
        count = int(rng.choice([0, 1, 100, 10_000, CHUNK_BYTES // 2]))
        yield torch.full((count,), float(number))


@pytest.fixture(params=[TcpEnds, EncryptedEnds], ids=["plain", "encrypted"])
def ends(request):
    ends = request.param(3)
    yield ends
    ends.close()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, logger="paceline")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_broken_chunks_are_refused_and_the_good_ones_among_them_arrive(ends, log, times):
    endpoint = ends.endpoints[0]
    traitor = ends.endpoints[TRAITOR].connect(0)
    impostor = ends.endpoints[FRIEND].connect(0)  # has stolen the friend's credentials
    ends.send(FRIEND, 0, torch.ones(3))
    assert torch.equal(ends.recv(0, FRIEND).tensor, torch.ones(3))
    attack = Attack(endpoint.run_id)
    replay = [attack.first(torch.ones(3)), torch.ones(3).numpy().tobytes()]
    sent, good = 0, good_messages()
    for number, parts in zip(range(times * BROKEN[ends.encrypt]), attack, strict=False):
        traitor.send_multipart(parts)
        sent += 1
        if number % 100 == 0:
            impostor.send_multipart(replay)
            sent += 1
            endpoint.drain()
        if number % 200 == 0:
            tensor = next(good)
            ends.send(FRIEND, 0, tensor, tag=1)
            assert torch.equal(ends.recv(0, FRIEND, tag=1).tensor, tensor)
    ends.poll_until(
        lambda: (endpoint.drain(), sum(endpoint.refused.values()) >= sent)[1], "all broken chunks are refused"
    )
    assert sum(endpoint.refused.values()) == sent
    assert {reason for _, reason in endpoint.refused} == REASONS
    assert len(log()) == len(endpoint.refused), "each reason is logged once for each sender"
    ends.send(0, FRIEND, torch.ones(5))
    ends.send(TRAITOR, 0, torch.ones(7))
    assert len(ends.recv(FRIEND, 0).tensor) == 5, "the way back is as it was"
    assert len(ends.recv(0, TRAITOR).tensor) == 7, "and the traitor may yet mend its ways"


def test_parts_that_are_too_large_end_the_connection_that_brought_them_and_no_other(ends):
    endpoint = ends.endpoints[0]
    ends.send(FRIEND, 0, torch.ones(3))
    ends.recv(0, FRIEND)
    traitor = ends.endpoints[TRAITOR].connect(0)
    for nbytes in (CHUNK_BYTES + 1000, 2**24):
        for _ in range(20):
            traitor.send_multipart([Attack(endpoint.run_id).prefix(), bytes(nbytes)])
    for number in range(20):
        ends.send(FRIEND, 0, torch.full((1000,), float(number)))
        assert ends.recv(0, FRIEND).tensor[999] == number
    assert not any(name == str(FRIEND) for name, _ in endpoint.refused)


def stranger(ends, introduce):
    context = zmq.Context()
    caller = context.socket(zmq.PUSH)
    caller.linger = 0
    introduce(caller)
    caller.connect(ends.endpoints[0].seat.address)
    with contextlib.suppress(zmq.Again):  # it has been thrown out already
        for _ in range(100):
            caller.send_multipart([Attack(ends.endpoints[0].run_id).prefix(), bytes(16)], zmq.NOBLOCK)
    return context, caller


def test_strangers_are_refused_while_the_run_goes_on(ends, log):
    def keys(caller):
        caller.curve_publickey, caller.curve_secretkey = zmq.curve_keypair()
        caller.curve_serverkey = ends.endpoints[0].seat.public_key or zmq.curve_keypair()[0]

    def password(caller):
        caller.plain_username, caller.plain_password = str(FRIEND).encode(), b"guessed"

    strangers = [stranger(ends, introduce) for introduce in (keys, password, lambda caller: None)]
    host, port = ends.endpoints[0].seat.address.removeprefix("tcp://").split(":")
    garbage = [socket.create_connection((host, int(port))) for _ in range(10)]
    rng = np.random.default_rng(0)
    for number in range(200):
        for caller in garbage:
            try:
                caller.send(rng.bytes(500))
            except OSError:  # it was thrown out
                continue
        ends.send(FRIEND, 0, torch.full((1000,), float(number)))
        assert ends.recv(0, FRIEND).tensor[999] == number
    ends.poll_until(lambda: len(log()) == 2, "both kinds of strangers are logged")
    assert all(text.startswith("refused a connection from") for text in log())
    assert not ends.endpoints[0].refused, "nothing of theirs came in"
    for context, _ in strangers:
        context.destroy(linger=0)
    for caller in garbage:
        caller.close()
