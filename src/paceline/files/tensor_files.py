"""Tensors on disk: safetensors, written directly from tensor memory and read from a mapped file.

The format is public and short: 8 bytes with the length of the header, the header (JSON: dtype, shape and position of
each tensor), then the bytes of the tensors. The safetensors package reads these files. It is not used here, because it
cannot hash the data that it writes and reads: every byte would be read once more. Torch is imported late.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline.files.checksums import Checksum, Memory, fresh_memory, read_file, write_parts
from paceline.files.reading import Fields, list_of, mapping_of, parse_json, text, whole

if TYPE_CHECKING:
    from torch import Tensor

_KINDS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""Names of dtypes in the format, and in torch."""
_NOTES = "__metadata__"
_HEADER_BYTES = 10**8
"""The longest header that the safetensors package accepts."""
_ALIGNED_BYTES = 8
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The content of a file."""

    tensors: dict[str, Tensor]
    notes: dict[str, str]
    """Texts by name, in the header."""


def write_tensors(
    out: BinaryIO, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None
) -> Checksum:
    """Write a file. Contiguous tensors in host memory are not copied.

    Raise OSError if the format does not support a tensor.
    """
    # So that all tensors are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = _header({name: tensors[name] for name in order}, notes or {})
    return write_parts(out, _parts(header, (tensors[name] for name in order)))


def read_tensors(file: BinaryIO, checksum: Checksum | None = None) -> TensorFile:
    """Read a file. Raise ValueError if it does not match the checksum, or is not such a file.

    The header is not trusted, because a file without a checksum may be read.
    """
    return parse_tensors(read_file(file, checksum))


def parse_tensors(memory: Memory) -> TensorFile:
    """Return the content of a file that is in memory. The tensors share this memory."""
    entries, notes, start = _parse(memory)
    return TensorFile({name: entry.tensor(memory, start) for name, entry in entries.items()}, notes)


_SLACK = 16


class Arena:
    """Memory for copies of tensors. Later copies reuse it, so only the first ones wait for the system."""

    def __init__(self) -> None:
        self._memory: Memory = bytearray()

    def reserve(self, tensors: Iterable[Tensor]) -> None:
        """Allocate the memory for copies of these tensors. Other threads can run meanwhile."""
        needed = sum(_aligned(tensor.nbytes) for tensor in tensors)
        if needed > len(self._memory):
            # The history of a run grows between checkpoints. Allocate more than needed, so that few checkpoints
            # have to allocate.
            self._memory = fresh_memory(needed + needed // _SLACK + _PAGE_BYTES)
            # The system allocates a page on first access.
            np.frombuffer(self._memory, dtype=np.uint8)[::_PAGE_BYTES] = 0

    def copies(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies in host memory. They overwrite earlier copies."""
        import torch

        self.reserve(tensors.values())
        room = torch.frombuffer(self._memory or bytearray(1), dtype=torch.uint8)
        made, start = {}, 0
        for name, tensor in tensors.items():
            made[name] = room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            _copy(tensor.detach(), made[name])
            start += _aligned(tensor.nbytes)
        return made


@dataclass(frozen=True, slots=True)
class _Entry:
    """Position of a tensor in the bytes after the header."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int

    def tensor(self, memory: Memory, offset: int) -> Tensor:
        import torch

        part = torch.frombuffer(memory, dtype=torch.uint8)[offset + self.start : offset + self.end]
        dtype = getattr(torch, _KINDS[self.kind])
        if part.storage_offset() % dtype.itemsize:
            part = part.clone()
        found: Tensor = part.view(dtype).view(self.shape)
        return found


def _header(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> bytes:
    names = {torch_name: name for name, torch_name in _KINDS.items()}
    header: dict[str, Any] = {_NOTES: dict(notes)} if notes else {}
    end = 0
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in names or tensor.is_meta or tensor.is_sparse:
            raise OSError(None, f"{name} is a {kind} tensor, which safetensors does not support")
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": names[kind], "shape": list(tensor.shape), "data_offsets": [start, end]}
    content = json.dumps(header, separators=(",", ":")).encode()
    content = content.ljust(_aligned(len(content)))
    return len(content).to_bytes(8, "little") + content


def _parts(header: bytes, tensors: Iterator[Tensor]) -> Iterator[bytes | memoryview]:
    yield header
    for tensor in tensors:
        yield _bytes_in(tensor.detach().cpu().contiguous()).data


def _bytes_in(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the memory of a contiguous tensor."""
    import torch

    found: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return found


def _copy(source: Tensor, into: Tensor) -> None:
    """Copy with numpy, which bypasses the processor's cache and uses one thread.

    Torch would use several threads, which wait for each other.
    """
    if source.is_contiguous() and source.device == into.device and source.nbytes:
        np.copyto(_bytes_in(into), _memory_of(source))
    else:
        into.copy_(source)


def _memory_of(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the same memory without using torch's `numpy()`: torch cannot resize a tensor after that call."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr()))


def _parse(memory: Memory) -> tuple[dict[str, _Entry], dict[str, str], int]:
    length = int.from_bytes(memory[:8], "little")
    start = 8 + length
    if len(memory) < 8 or length > _HEADER_BYTES or start > len(memory):
        raise ValueError("its header must be complete")
    content = mapping_of(_as_it_is, lambda value: value)(parse_json(bytes(memory[8:start])))
    notes = mapping_of(_as_it_is, _as_it_is)(content.pop(_NOTES, {}))
    entries = {name: _entry(name, value, len(memory) - start) for name, value in content.items()}
    return entries, notes, start


def _entry(name: str, value: object, nbytes: int) -> _Entry:
    fields = Fields(value)
    kind, shape = fields.get("dtype", text), fields.get("shape", list_of(whole))
    start, end = fields.get("data_offsets", list_of(whole))
    if kind not in _KINDS:
        raise ValueError(f"{name[:80]!r} has the unknown dtype {kind[:20]!r}")
    if not start <= end <= nbytes:
        raise ValueError(f"{name[:80]!r} must be between 0 and {nbytes:,}, but is at {start:,} to {end:,}")
    needed = math.prod(shape) * _bytes_of(kind)
    if needed != end - start:
        raise ValueError(f"{name[:80]!r} must have {needed:,} bytes, but has {end - start:,}")
    return _Entry(kind, tuple(shape), start, end)


def _bytes_of(kind: str) -> int:
    import torch

    dtype: torch.dtype = getattr(torch, _KINDS[kind])
    return dtype.itemsize


def _as_it_is(value: object) -> str:
    """Check a name, and return it unchanged, so that lookups by name succeed."""
    text(value)
    return str(value)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
