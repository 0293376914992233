"""Messages over one connection: complete, in order, and combined like torch's operations, for any behaviour of the
network."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from links.ends import EncryptedEnds, TcpEnds
from refusals import raised

from paceline.errors import FrameError
from paceline.links.frames import HEADER_BYTES, Place, pack
from paceline.links.tcp.streams import PlainStream, TlsStream

LARGE = 3 * 2**20 + 8


@pytest.fixture(params=[TcpEnds, EncryptedEnds], ids=["plain", "encrypted"])
def ends(request):
    ends = request.param()
    yield ends
    ends.close()


def pattern(nbytes, dtype=torch.uint8):
    return torch.arange(nbytes // dtype.itemsize).to(dtype)


@settings(max_examples=15, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from([0, 8, 4000, 2**16, 2**18, LARGE]), st.integers(0, 2)), max_size=12),
)
def test_messages_arrive_in_order_by_tag_whatever_their_sizes(encrypt, messages):
    ends = EncryptedEnds() if encrypt else TcpEnds()
    tensors = [
        torch.full((nbytes,), number, dtype=torch.uint8) for number, (nbytes, _) in enumerate(messages)
    ]
    sent = [ends.send(0, 1, tensor, tag) for tensor, (_, tag) in zip(tensors, messages, strict=True)]
    for tag in range(3):
        for tensor, (_, its_tag) in zip(tensors, messages, strict=True):
            if its_tag == tag:
                assert torch.equal(ends.recv(1, 0, tag=tag).tensor, tensor)
    ends.poll_until(lambda: all(operation.done for operation in sent), "all is sent")
    ends.close()


@pytest.fixture(params=[PlainStream, TlsStream], ids=["plain", "encrypted"])
def slow_ends(request, monkeypatch):
    """A network that gives and takes a few bytes at a time, and cuts elements in two."""
    chance, receive, send = random.Random(1), request.param._receive, request.param._send

    def receive_few(self, place):
        return receive(self, place[: chance.choice([1, 3, 7, 1000, 65_537])])

    def send_few(self, header, payload):
        most = chance.choice([1, 100, 1000, 65_537])
        return send(self, header[:most], payload[:most] if len(header) <= most else memoryview(b""))

    monkeypatch.setattr(request.param, "_receive", receive_few)
    if request.param is PlainStream:  # OpenSSL must be given the same bytes again
        monkeypatch.setattr(PlainStream, "_send", send_few)
    ends = TcpEnds() if request.param is PlainStream else EncryptedEnds()
    yield ends
    ends.close()


@pytest.mark.parametrize("combine", ["copy", "sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_a_payload_that_arrives_in_pieces_is_combined_as_torch_does(slow_ends, dtype, combine):
    other = pattern(LARGE, dtype)
    own = torch.full_like(other, 50)
    expected = {"copy": lambda _, b: b, "sum": torch.add, "max": torch.maximum, "min": torch.minimum}[
        combine
    ](own, other)
    slow_ends.send(0, 1, other)
    assert torch.equal(slow_ends.recv(1, 0, own, combine).tensor, expected)


@pytest.mark.parametrize("combine", ["copy", "sum"])
def test_what_follows_a_receive_that_is_cancelled_half_way_arrives_whole(slow_ends, combine):
    ends = slow_ends
    for attempt in range(10):
        into = torch.zeros(LARGE // 8, dtype=torch.float64)
        receiving = ends.post(1, 0, into, combine)
        ends.send(0, 1, pattern(LARGE, torch.float64))
        wanted = 8 * attempt
        ends.poll_until(lambda r=receiving, n=wanted: r.poll() or r.received > n, "some of it has come")
        receiving.cancel()
        ends.send(0, 1, torch.full((LARGE // 8,), float(attempt), dtype=torch.float64))
        assert ends.recv(1, 0).tensor.unique().tolist() == [attempt]


def test_a_send_that_is_cancelled_while_a_record_is_half_sent_arrives_whole(ends):
    """OpenSSL holds a record that it has encrypted: the bytes that follow must be those of the same message."""
    for attempt in range(5):
        tensor = torch.full((2**21,), float(attempt))
        sending = ends.send(0, 1, tensor)
        ends.poll_until(lambda s=sending: s.sent > 0, "it has begun")
        sending.cancel()
        tensor.zero_()
        ends.send(0, 1, torch.tensor([float(-attempt)]))
        assert ends.recv(1, 0).tensor.unique().tolist() == [attempt]
        assert ends.recv(1, 0).tensor.tolist() == [-attempt]


def test_a_closed_connection_gives_and_takes_nothing(ends):
    ends.send(0, 1, torch.ones(3))
    ends.recv(1, 0)
    ends.endpoints[0].way(1)._stream.close()
    receiving = ends.post(1, 0)
    for _ in range(3):
        assert not receiving.poll()
    assert str(ends.endpoints[1].way(0)) == "TCP to rank 0: closed, 0 messages to send"


def header(tensor, **changes):
    data = bytearray(HEADER_BYTES)
    pack(memoryview(data), 0, tensor, **{"tag": 0, "epoch": 0} | changes)
    return data


BAD = {
    "magic 0x0000": bytes(HEADER_BYTES),
    "4,398,046,511,104 bytes": header(torch.zeros(2**40, device="meta")),
    "shared memory": header(torch.zeros(4), lent=Place(0, 0)),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_header_that_is_none_ends_the_connection_with_the_reason(ends, fault):
    ends.send(0, 1, torch.ones(3))
    ends.recv(1, 0)
    ends.endpoints[0].way(1)._stream.write(memoryview(BAD[fault]), memoryview(b""))
    receiving = ends.post(1, 0)
    with raised(FrameError, "rank 0", fault):
        ends.poll_until(receiving.poll, "it is refused")
    assert ends.endpoints[1].way(0)._stream.is_broken
