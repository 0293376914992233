import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import raised

from paceline.errors import FrameError
from paceline.links.frames import HEADER_BYTES, Place, dtype_name, pack, unpack

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def packed(tensor, tag=0, epoch=0, offset=0, numbers=(), begins_s=0.0, lent=None, **more):
    target = memoryview(bytearray(HEADER_BYTES + offset))
    return target, pack(target, offset, tensor, tag, epoch, numbers, begins_s, lent, **more)


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 2**14), max_size=4),
    tag=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**16 - 1),
    offset=st.integers(0, 100),
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False), max_size=4).map(tuple),
    begins_s=st.floats(0.0, allow_infinity=False),
    lent=st.none() | st.builds(Place, st.integers(0, 2**32 - 2), st.integers(0, 2**64 - 1)),
    on_device=st.booleans(),
    number=st.integers(-1, 2**40 - 1),
)
def test_a_header_says_what_was_packed(
    dtype, shape, tag, epoch, offset, numbers, begins_s, lent, on_device, number
):
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    rest = {"on_device": on_device, "number": number}
    target, nbytes = packed(tensor, tag, epoch, offset, numbers, begins_s, lent, **rest)
    header = unpack(target, offset)
    size = tensor.numel() * dtype.itemsize
    assert header == (dtype, tuple(shape), tag, size, epoch, numbers, begins_s, lent, on_device, number)
    assert [type(number) for number in header.numbers] == [type(number) for number in numbers]
    assert nbytes == header.nbytes


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_garbage_is_refused(data):
    if data[:2] == b"LP":  # the magic: what follows is garbage all the same, but might happen to fit
        data = b"\0\0" + data[2:]
    with pytest.raises(FrameError):
        unpack(memoryview(data), 0)


@given(place=st.integers(0, HEADER_BYTES - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_changes_only_what_the_header_cannot_check(place, bit):
    target, _ = packed(torch.empty(3, 5), tag=9, numbers=(4,))
    target[place] ^= 1 << bit
    try:
        header = unpack(target, 0)
    except FrameError:
        return
    assert header.nbytes == header.dtype.itemsize * torch.Size(header.shape).numel()
    assert header.nbytes == 60


@pytest.mark.parametrize("place", [0, 1, 4, 5, 24, 32, 40])  # magic, dtype, dimensions, bytes, shape
def test_a_damaged_field_is_refused(place):
    target, _ = packed(torch.empty(3, 5))
    target[place] = 0xEE
    with pytest.raises(FrameError):
        unpack(target, 0)


def test_a_negative_size_is_refused():
    target, _ = packed(torch.empty(3, 5))
    target[32:48] = (-3).to_bytes(8, "little", signed=True) + (-5).to_bytes(8, "little", signed=True)
    with raised(FrameError, "shape [-3, -5]"):
        unpack(target, 0)


@pytest.mark.parametrize("begins_s", [-1.0, math.inf, math.nan])
def test_a_time_of_arrival_that_is_no_time_is_refused(begins_s):
    target, _ = packed(torch.empty(3, 5), begins_s=begins_s)
    with raised(FrameError, f"{begins_s} s"):
        unpack(target, 0)


def test_a_dtype_that_no_frame_knows_is_refused_by_name():
    with raised(FrameError, "torch.complex64"):
        packed(torch.empty(2, dtype=torch.complex64))


def test_more_than_four_dimensions_are_refused():
    with raised(FrameError, "5 dimensions"):
        packed(torch.empty(1, 1, 1, 1, 1))


def test_a_dtype_is_named_without_torch():
    assert dtype_name(torch.bfloat16) == "bfloat16"


@pytest.mark.parametrize("number", [-2, 2**40])
def test_a_message_number_that_cannot_be_is_refused(number):
    """The number and the rank of the sender together are the message's id, which has 64 bits."""
    target, _ = packed(torch.zeros(2), number=number)
    with pytest.raises(FrameError):
        unpack(target, 0)
