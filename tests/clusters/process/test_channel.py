import os
import socket
import threading

import numpy as np
import pytest
import torch
from refusals import raised

from paceline.clusters.process.channel import Channel, ChannelClosed, decode, encode


@pytest.fixture
def ends():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for end in pair:
        end.close()


def test_a_letter_arrives_with_its_values_blobs_and_descriptors(ends):
    reading, writing = os.pipe()
    blobs = [
        b"",
        b"abc",
        np.arange(100_000),
    ]  # more than a socket buffer holds, so it must be read while it is written
    sender = threading.Thread(target=ends[0].send, args=("word", {"a": [1, None, "é"]}, blobs, [writing]))
    sender.start()
    letter = ends[1].receive()
    sender.join()
    assert (letter.word, letter.values) == ("word", {"a": [1, None, "é"]})
    assert [bytes(blob) for blob in letter.blobs] == [bytes(memoryview(blob).cast("B")) for blob in blobs]
    os.write(letter.fds[0], b"through")
    assert os.read(reading, 100) == b"through"
    for fd in (reading, writing, *letter.fds):
        os.close(fd)


def test_letters_come_one_by_one_in_order(ends):
    for number in range(50):
        ends[0].send(f"letter {number}", {"number": number}, [bytes(number)])
    for number in range(50):
        letter = ends[1].receive()
        assert (letter.word, letter.values["number"], len(letter.blobs[0])) == (
            f"letter {number}",
            number,
            number,
        )


def test_a_closed_channel_is_noticed_on_both_sides(ends):
    ends[0].close()
    with pytest.raises(ChannelClosed):
        ends[1].receive()
    with pytest.raises(ChannelClosed):
        ends[1].send("word")


def test_a_letter_that_breaks_off_is_noticed(ends):
    ends[0].socket.sendall((100).to_bytes(4, "little") + b"[half")
    ends[0].close()
    with pytest.raises(ChannelClosed):
        ends[1].receive()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_tensors_travel_as_bytes_beside_the_letter(dtype, shape):
    tensor, blobs = torch.ones(shape).to(dtype), []
    body = encode(tensor, blobs)
    decoded = decode(body, [bytearray(blob.tobytes()) for blob in blobs])
    assert decoded.dtype == dtype
    assert torch.equal(decoded, tensor)


def test_lists_and_dictionaries_keep_their_structure():
    value = {"a": [1, {"b": None}], 3: "three", "tensor": True, "dict": [1.5]}
    assert decode(encode(value, []), []) == value


def test_numpys_numbers_become_plain():
    assert decode(encode([np.float64(1.5), np.int32(3)], []), []) == [1.5, 3]


def test_what_is_not_plain_is_refused():
    with raised(TypeError, "object"):
        encode(object(), [])
