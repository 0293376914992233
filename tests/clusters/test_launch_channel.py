"""What travels between the driver and its workers: letters and the task."""

import os
import socket
import threading

import numpy as np
import pytest
import torch

from paceline.clusters import payload
from paceline.clusters.channel import Channel, ChannelClosed, decode, encode


@pytest.fixture
def ends():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for end in pair:
        end.close()


def test_a_letter_arrives_with_its_values_blobs_and_descriptors(ends):
    reading, writing = os.pipe()
    blobs = [b"", b"abc", np.arange(100_000)]  # more than a socket holds: it is read while it is written
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
    with pytest.raises(TypeError, match="tensors, numbers, texts, lists and dictionaries, not"):
        encode(object(), [])


# The task


def roundtrip(value):
    memory = payload.store(value)
    try:
        return payload.load(memory.fd, memory.nbytes)
    finally:
        memory.close_fd()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(10),
        torch.arange(10_000.0).view(100, 100),
        torch.arange(10_000.0).view(100, 100).t(),
        torch.arange(10_000.0)[5000:],
        torch.ones(10_000, dtype=torch.bfloat16),
        torch.ones(10_000, requires_grad=True),
        torch.ones(10_000).to_sparse(),
        torch.nn.Parameter(torch.ones(10_000)),
        torch.empty(0),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_every_kind_of_tensor_travels(tensor):
    arrived = roundtrip({"data": tensor})["data"]
    assert type(arrived) is type(tensor)
    assert arrived.requires_grad == tensor.requires_grad
    assert torch.equal(arrived.to_dense(), tensor.to_dense())


def test_tensors_that_are_one_stay_one():
    large = torch.arange(10_000.0)
    first, second = roundtrip((large, large))
    assert first is second


def test_a_receiver_that_writes_to_a_large_tensor_changes_its_own_copy_only():
    memory = payload.store([torch.zeros(10_000)])
    (mine,), (other,) = (payload.load(memory.fd, memory.nbytes) for _ in range(2))
    mine.fill_(1)
    assert not other.any()
    memory.close_fd()


def test_functions_and_classes_of_no_module_travel():
    factor = 3

    class Scale:
        def __call__(self, x):
            return factor * x

    assert roundtrip(lambda x: Scale()(x) + 1)(2) == 7
