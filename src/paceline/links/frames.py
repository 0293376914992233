"""The header that stands before every tensor on a link: checked before the payload is touched, never unpickled."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import torch

from paceline.errors import FrameError

__all__ = ["HEADER_BYTES", "Header", "Place", "dtype_name", "pack", "unpack"]

HEADER_BYTES = 128
_MAGIC = 0x504C  # "PL"
_MAX_DIMENSIONS = 4
# magic, epoch, dtype, dimensions, -, tag, lent memory, version, bytes, shape, note, when it begins to arrive, place, -
_LAYOUT = struct.Struct("<HHBB2xIIqQ4qddQ40x")
assert _LAYOUT.size == HEADER_BYTES

# The numbers are part of the format: append, never reorder.
_DTYPES = (
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
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_ITEM_BYTES = tuple(dtype.itemsize for dtype in _DTYPES)


class Place(NamedTuple):
    """A place in memory that a rank lends."""

    number: int
    """Which of the rank's memories."""
    offset: int


class Header(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    tag: int
    version: int
    nbytes: int
    epoch: int
    note: float = 0.0
    begins_s: float = 0.0
    """When the message begins to arrive, on the monotonic clock: told only where a link is emulated."""
    lent: Place | None = None
    """Where the payload lies. None: it follows."""


def pack(
    target: memoryview,
    offset: int,
    tensor: torch.Tensor,
    tag: int,
    version: int,
    epoch: int,
    note: float = 0.0,
    begins_s: float = 0.0,
    lent: Place | None = None,
) -> int:
    """Write the header of a tensor to `target` at `offset`; return the bytes of its payload."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise FrameError(f"a tensor of {tensor.dtype} cannot be sent; convert it to one of {_DTYPES}")
    shape = tensor.shape
    if len(shape) > _MAX_DIMENSIONS:
        raise FrameError(f"a tensor of {len(shape)} dimensions cannot be sent; flatten it to at most 4")
    nbytes = tensor.numel() * _ITEM_BYTES[code]
    dimensions = (*shape, 0, 0, 0, 0)[:4]
    _LAYOUT.pack_into(
        target,
        offset,
        _MAGIC,
        epoch,
        code,
        len(shape),
        tag & 0xFFFFFFFF,
        lent.number + 1 if lent else 0,
        version,
        nbytes,
        *dimensions,
        note,
        begins_s,
        lent.offset if lent else 0,
    )
    return nbytes


def unpack(source: memoryview, offset: int) -> Header:
    """Read a header and check that it is one and agrees with itself."""
    magic, epoch, code, dimensions, tag, number, version, nbytes, *shape, note, begins_s, place = (
        _LAYOUT.unpack_from(source, offset)
    )
    if magic != _MAGIC or code >= len(_DTYPES) or dimensions > _MAX_DIMENSIONS:
        raise FrameError(f"not a frame: magic {magic:#06x}, dtype {code}, {dimensions} dimensions")
    count = 1
    for size in shape[:dimensions]:
        if size < 0:
            raise FrameError(f"not a frame: shape {shape[:dimensions]}")
        count *= size
    if count * _ITEM_BYTES[code] != nbytes:
        raise FrameError(f"not a frame: {nbytes} bytes for {count} elements of {_DTYPES[code]}")
    if not 0.0 <= begins_s < math.inf:
        raise FrameError(f"not a frame: begins to arrive at {begins_s} s")
    lent = Place(number - 1, place) if number else None
    return Header(_DTYPES[code], tuple(shape[:dimensions]), tag, version, nbytes, epoch, note, begins_s, lent)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
