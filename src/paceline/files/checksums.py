"""The size and SHA-256 of files, computed in the same pass that writes or reads them, and JSON with its own checksum.

A sealed JSON text begins with `"sha256"`: the SHA-256 of the whole text with 64 zeros in place of these digits. So a
file that lists the checksums of other files can itself be verified.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

Memory: TypeAlias = "bytearray | mmap.mmap"
"""Writable memory that tensors can use."""

_CHUNK_BYTES = 2**22
"""Bytes hashed at a time. They stay in the processor's cache until they are written."""
_LARGE_BYTES = 2**20
_ZEROS = "0" * 64
_SEAL = re.compile(rb'\{\s*"sha256": "([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Checksum:
    """The size and SHA-256 of a file."""

    nbytes: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {"bytes": self.nbytes, "sha256": self.sha256}

    def check_size(self, nbytes: int) -> None:
        if nbytes != self.nbytes:
            raise ValueError(f"it must have {self.nbytes:,} bytes, but it has {nbytes:,}")

    def check(self, found: Checksum) -> None:
        self.check_size(found.nbytes)
        if found.sha256 != self.sha256:
            raise ValueError(f"its SHA-256 must be {self.sha256[:12]}…, but it is {found.sha256[:12]}…")


def write_parts(out: BinaryIO, parts: Iterable[bytes | memoryview]) -> Checksum:
    """Write memory blocks one after another, and hash them. Other threads can run meanwhile."""
    digest, nbytes = hashlib.sha256(), 0
    for part in parts:
        for chunk in _chunks(memoryview(part)):
            digest.update(chunk)
            out.write(chunk)
            nbytes += len(chunk)
    return Checksum(nbytes, digest.hexdigest())


def read_file(file: BinaryIO, checksum: Checksum | None = None) -> Memory:
    """Return the whole file as writable memory. Writing to it does not change the file.

    A large file is mapped: its bytes are read from disk once, when they are hashed, and are not copied. The file may be
    removed, or replaced by a rename. Truncating the file in place would crash the process. Raise ValueError if it
    does not match the checksum. Without a checksum nothing is checked.
    """
    nbytes = os.fstat(file.fileno()).st_size
    if checksum is not None:
        checksum.check_size(nbytes)
    memory: Memory
    if nbytes < _LARGE_BYTES:
        memory = bytearray(file.read())
    else:
        memory = mmap.mmap(file.fileno(), nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        memory.madvise(mmap.MADV_WILLNEED)
    if checksum is not None:
        checksum.check(Checksum(len(memory), hashlib.sha256(memory).hexdigest()))
    return memory


def hash_file(file: BinaryIO) -> Checksum:
    """Read a file and return its checksum."""
    digest, nbytes, memory = hashlib.sha256(), 0, memoryview(bytearray(_CHUNK_BYTES))
    while count := file.readinto(memory):  # type: ignore[attr-defined]
        digest.update(memory[:count])
        nbytes += count
    return Checksum(nbytes, digest.hexdigest())


def fresh_memory(nbytes: int) -> Memory:
    """Return zeroed memory. The system allocates a large block page by page on first access."""
    if nbytes < _LARGE_BYTES:
        return bytearray(nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def seal(values: Mapping[str, Any]) -> bytes:
    """Return the values as a JSON text that contains its own SHA-256."""
    text = json.dumps({"sha256": _ZEROS, **values}, indent=1) + "\n"
    return text.replace(_ZEROS, hashlib.sha256(text.encode()).hexdigest(), 1).encode()


def check_seal(text: bytes) -> None:
    """Raise ValueError if any byte of the text differs from what `seal` returned."""
    found = _SEAL.match(text)
    if found is None:
        raise ValueError("it must begin with its own SHA-256")
    start, end = found.span(1)
    if hashlib.sha256(text[:start] + _ZEROS.encode() + text[end:]).hexdigest().encode() != found[1]:
        raise ValueError("its text has changed since it was saved: its SHA-256 differs")


def _chunks(memory: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(memory), _CHUNK_BYTES):
        yield memory[start : start + _CHUNK_BYTES]
