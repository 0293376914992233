"""Large payloads over TCP without encryption: a connection of their own, for those with a ticket."""

import logging
import random
import select
import socket

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from links.ends import EncryptedEnds, TcpEnds, Waiter
from processes import has_signs, wait_until

from paceline.errors import FrameError
from paceline.links.chunks import CHUNK_BYTES
from paceline.links.streams import OFFER_BYTES, Stream, Streams
from paceline.links.tcp import TcpEndpoint
from paceline.links.tcp_way import STREAM_BYTES

LARGE = 3 * 2**20 + 8


@pytest.fixture
def ends():
    ends = TcpEnds()
    yield ends
    ends.close()


def pattern(nbytes, dtype=torch.uint8):
    return torch.arange(nbytes // dtype.itemsize).to(dtype)


def port(streams):
    return streams._listener.getsockname()[1]


def open_stream(ends):
    """From rank 0 to rank 1; returns what rank 0 offers."""
    ends.send(0, 1, pattern(LARGE))
    ends.recv(1, 0)
    return ends.endpoints[0].streams


# Messages


def test_a_large_payload_takes_none_of_the_window(ends):
    sending = ends.send(0, 1, pattern(LARGE))
    message = ends.recv(1, 0)
    assert torch.equal(message.tensor, pattern(LARGE))
    assert sending.poll()
    assert ends.endpoints[0].way(1)._sent_bytes < CHUNK_BYTES


def test_a_stream_is_opened_once_and_for_large_payloads_alone(ends):
    ends.send(0, 1, pattern(STREAM_BYTES))
    ends.recv(1, 0)
    assert not ends.endpoints[0].streams._streams
    for _ in range(3):
        ends.send(0, 1, pattern(STREAM_BYTES + 1))
        ends.recv(1, 0)
    assert [len(endpoint.streams._streams) for endpoint in ends.endpoints] == [1, 1]


def test_with_encryption_there_are_no_streams():
    ends = EncryptedEnds()
    ends.send(0, 1, pattern(LARGE))
    assert torch.equal(ends.recv(1, 0).tensor, pattern(LARGE))
    assert [endpoint.streams for endpoint in ends.endpoints] == [None, None]
    with pytest.raises(FrameError, match="do without encryption"):
        ends.endpoints[1].take_up(0, memoryview(bytes(OFFER_BYTES)))
    ends.close()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 4000, STREAM_BYTES + 8, LARGE]), st.integers(0, 2)), max_size=12)
)
def test_streamed_messages_keep_their_place_among_the_others(messages):
    ends = TcpEnds()
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


@pytest.fixture
def by_bits(monkeypatch):
    """A network that gives a few bytes at a time, and cuts elements in two."""
    chance, read_into = random.Random(1), Stream.read_into

    def read_few(self, place):
        return read_into(self, place[: chance.choice([1, 3, 7, 1000, 65_537])])

    monkeypatch.setattr(Stream, "read_into", read_few)


@pytest.mark.parametrize("combine", ["copy", "sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.usefixtures("by_bits")
def test_a_payload_that_comes_bit_by_bit_is_combined_as_torch_does(ends, dtype, combine):
    other = pattern(LARGE, dtype)
    own = torch.full_like(other, 50)
    expected = {"copy": lambda _, b: b, "sum": torch.add, "max": torch.maximum, "min": torch.minimum}[
        combine
    ](own, other)
    ends.send(0, 1, other)
    assert torch.equal(ends.recv(1, 0, own, combine).tensor, expected)


@pytest.mark.parametrize("combine", ["copy", "sum"])
@pytest.mark.usefixtures("by_bits")
def test_what_follows_a_receive_that_is_cancelled_half_way_comes_whole(ends, combine):
    for attempt in range(20):
        into = torch.zeros(LARGE // 8, dtype=torch.float64)
        receiving = ends.post(1, 0, into, combine)
        ends.send(0, 1, pattern(LARGE, torch.float64))
        wanted = 8 * attempt
        ends.poll_until(lambda r=receiving, n=wanted: r.poll() or r.received > n, "some of it has come")
        receiving.cancel()
        ends.send(0, 1, torch.full((LARGE // 8,), float(attempt), dtype=torch.float64))
        assert ends.recv(1, 0).tensor.unique().tolist() == [attempt]


# Who comes


def test_who_has_no_ticket_is_turned_away_and_the_run_goes_on(ends, caplog):
    streams = open_stream(ends)
    for words in (b"", b"short", bytes(32), random.Random(2).randbytes(1000)):
        with socket.create_connection(("127.0.0.1", port(streams))) as stranger:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            ends.poll_until(lambda s=stranger: is_closed(s, ends.endpoints[0]), "it is turned away")
    assert ends.endpoints[0].refused == {("127.0.0.1", "a call for a stream, without its ticket"): 4}
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    ends.send(0, 1, pattern(LARGE))
    assert torch.equal(ends.recv(1, 0).tensor, pattern(LARGE))


def is_closed(stranger, endpoint):
    endpoint.drain()
    if not has_signs(stranger, 0.01):
        return False
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def test_callers_who_say_nothing_are_turned_away_when_there_are_too_many(ends):
    streams = open_stream(ends)
    silent = [socket.create_connection(("127.0.0.1", port(streams))) for _ in range(100)]
    ends.poll_until(lambda: (ends.endpoints[0].drain(), sum(ends.endpoints[0].refused.values()) >= 36)[1], "")
    assert len(streams._callers) <= 64
    for one in silent:
        one.close()


def test_a_ticket_serves_once():
    refused = []
    streams = Streams("127.0.0.1", None, watch := select.epoll(), lambda who, why: refused.append((who, why)))
    offered = streams.offer()
    assert offered is not None
    stream, offer = offered
    first, second = (streams.take_up("127.0.0.1", memoryview(offer)) for _ in range(2))
    wait_until(
        lambda: (streams.serve({fd for fd, _ in watch.poll(0.01)}), refused and stream._socket)[1],
        "one is let in and one refused",
    )
    assert len(refused) == 1
    assert stream.write(memoryview(b"hello")) == 5
    place = memoryview(bytearray(9))
    assert sorted([read(first, place, watch), read(second, place, watch)]) == [0, 5]
    streams.close()


def read(stream, place, watch):
    for _ in range(50):
        if stream._socket is None:
            return 0
        if count := stream.read_into(place):
            return count
        watch.poll(0.1)
    return 0


def test_an_offer_to_which_there_is_no_way_is_refused(ends):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        offer = closed.getsockname()[1].to_bytes(2, "little") + bytes(32)
    with pytest.raises(FrameError, match="no way"):
        ends.endpoints[1].take_up(0, memoryview(offer))


def test_where_no_port_is_left_large_payloads_go_in_chunks():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        streams = Streams("127.0.0.1", range(number, number + 1), select.epoll(), lambda who, why: None)
        assert streams.offer() is None


def test_a_run_whose_ports_are_just_enough_for_its_ranks_does_without_streams():
    ends = TcpEnds()
    ends.endpoints[0].streams._ports = range(0)
    ends.send(0, 1, pattern(LARGE))
    assert torch.equal(ends.recv(1, 0).tensor, pattern(LARGE))
    assert not ends.endpoints[1].streams._streams
    ends.close()


# The end


def test_what_was_sent_arrives_though_its_sender_has_closed(ends):
    sending = ends.send(0, 1, torch.ones(2 * STREAM_BYTES, dtype=torch.uint8))
    ends.poll_until(lambda: (ends.endpoints[1].drain(), sending.done)[1], "it has left")
    ends.endpoints[0].close(linger_s=10.0)
    ends.endpoints.pop(0)
    ends.waiter.running.clear()
    assert ends.recv(1, 0).tensor.sum() == 2 * STREAM_BYTES


def test_a_stream_whose_other_end_is_gone_takes_and_gives_nothing(ends):
    open_stream(ends)
    ends.endpoints[1].streams.close()
    sending = ends.ports[0].send(Waiter(), 1, pattern(20 * LARGE), 0, 0)
    ends.poll_until(lambda: (sending.poll(), ends.endpoints[0].way(1)._to_stream._socket is None)[1], "")
    assert not sending.poll()
    assert sending.error is None


def test_an_endpoint_leaves_no_file_open():
    endpoint = TcpEndpoint(0, run_id=bytes(16), encrypt=False, token=b"token")
    endpoint.streams.offer()
    listener, watch = endpoint.streams._listener, endpoint._watch
    endpoint.close()
    assert listener.fileno() == -1
    assert watch.closed
