"""The header before every tensor on a link. It is checked before the payload is read. Nothing is unpickled."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import torch

from paceline.errors import FrameError

HEADER_BYTES = 128
_MAGIC = 0x504C  # "PL"
_MAX_DIMENSIONS = 4
_MAX_NUMBERS = 4
_MAX_MESSAGES = 2**40
# magic, epoch, dtype, dimensions, kinds of the numbers, whether from a device, number of the lent memory, -, tag,
# bytes, shape, the numbers, time of arrival, offset in the lent memory, number of the message, -
_LAYOUT = struct.Struct("<HHBBBBI4xQQ4q4qdQq8x")
assert _LAYOUT.size == HEADER_BYTES
_BITS, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")
_WHOLE, _BROKEN = 1, 2  # two bits for each number: none, an integer, or a float

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
    """A location in memory that a rank lends to other ranks."""

    number: int
    """Number of the rank's lent memory."""
    offset: int


class Header(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    tag: int
    nbytes: int
    epoch: int
    numbers: tuple[float, ...] = ()
    """Numbers of the strategy."""
    begins_s: float = 0.0
    """Time at which the message begins to arrive, on the run's clock. Set only on emulated links."""
    lent: Place | None = None
    """Location of the payload in lent memory. None if the payload follows the header."""
    on_device: bool = False
    """Whether the tensor was on a device. The receiver then puts it on its own device."""
    number: int = -1
    """Number of the message, counted by its sender. -1 for a message of a rank to itself."""


def pack(
    target: memoryview,
    offset: int,
    tensor: torch.Tensor,
    tag: int,
    epoch: int,
    numbers: tuple[float, ...] = (),
    begins_s: float = 0.0,
    lent: Place | None = None,
    *,
    on_device: bool = False,
    number: int = -1,
) -> int:
    """Write the header of a tensor to `target` at `offset`. Return the payload size in bytes."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise FrameError(f"a tensor of {tensor.dtype} cannot be sent; convert it to one of {_DTYPES}")
    shape = tensor.shape
    if len(shape) > _MAX_DIMENSIONS:
        raise FrameError(f"a tensor of {len(shape)} dimensions cannot be sent; flatten it to at most 4")
    nbytes = tensor.numel() * _ITEM_BYTES[code]
    dimensions = (*shape, 0, 0, 0, 0)[:4]
    kinds, slots = _encode(numbers) if numbers else (0, (0, 0, 0, 0))
    _LAYOUT.pack_into(
        target,
        offset,
        _MAGIC,
        epoch,
        code,
        len(shape),
        kinds,
        on_device,
        lent.number + 1 if lent else 0,
        tag,
        nbytes,
        *dimensions,
        *slots,
        begins_s,
        lent.offset if lent else 0,
        number,
    )
    return nbytes


def unpack(source: memoryview, offset: int) -> Header:
    """Read a header, and check that it is valid and consistent."""
    magic, epoch, code, dimensions, kinds, on_device, memory, tag, nbytes, *rest, begins_s, place, number = (
        _LAYOUT.unpack_from(source, offset)
    )
    shape, slots = rest[:4], rest[4:]
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
    if not -1 <= number < _MAX_MESSAGES:
        raise FrameError(f"not a frame: message number {number}")
    lent = Place(memory - 1, place) if memory else None
    numbers = _decode(kinds, slots) if kinds else ()
    sizes = tuple(shape[:dimensions])
    return Header(_DTYPES[code], sizes, tag, nbytes, epoch, numbers, begins_s, lent, on_device == 1, number)


def _encode(numbers: tuple[float, ...]) -> tuple[int, list[int]]:
    """Return the kinds of the numbers, and the bits of each."""
    if len(numbers) > _MAX_NUMBERS:
        raise FrameError(f"a header of {len(numbers)} numbers cannot be sent; {_MAX_NUMBERS} is the limit")
    kinds, slots = 0, [0] * _MAX_NUMBERS
    for place, number in enumerate(numbers):
        if isinstance(number, int):
            kinds |= _WHOLE << 2 * place
            slots[place] = number
        else:
            kinds |= _BROKEN << 2 * place
            slots[place] = _BITS.unpack(_DOUBLE.pack(number))[0]
    return kinds, slots


def _decode(kinds: int, slots: list[int]) -> tuple[float, ...]:
    numbers: list[float] = []
    for slot in slots:
        kind, kinds = kinds & 3, kinds >> 2
        if kind == _WHOLE:
            numbers.append(slot)
        elif kind == _BROKEN:
            numbers.append(_DOUBLE.unpack(_BITS.pack(slot))[0])
        else:
            break
    return tuple(numbers)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
