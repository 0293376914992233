"""Memory mapped from files: find the file range behind an address, and map the same range in another process.

The kernel lists all mappings of a process, whether made by numpy, torch or Arrow. So a mapped array can be passed to
another process on this host as a few numbers.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paceline.errors import RunError

_LINE = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<stop>[0-9a-f]+) (?P<rights>\S+) (?P<offset>[0-9a-f]+) \S+ (?P<inode>\d+) +(?P<path>/.*)"
)
_OWN = re.compile(r"(?:Anonymous|Swap): +(\d+) kB")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A range of bytes in a file."""

    path: str
    offset: int
    nbytes: int
    inode: int
    """Inode number, to check that it is still the same file."""


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    stop: int
    offset: int
    inode: int
    path: str
    is_shared: bool


class Mappings:
    """Mapped files of this process, read on first use."""

    def find(self, address: int, nbytes: int) -> FilePart | None:
        """Return the file range of these bytes. None if any of them are private to the process."""
        for each in self._all:
            if each.start <= address and address + nbytes <= each.stop:
                return _part(each, address, nbytes) if each.is_shared or not _own_bytes(each) else None
        return None

    @cached_property
    def _all(self) -> list[_Mapping]:
        return list(_read())


def _read() -> Iterator[_Mapping]:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if found := _LINE.match(line):
            start, stop, offset = (int(found[name], 16) for name in ("start", "stop", "offset"))
            yield _Mapping(start, stop, offset, int(found["inode"]), found["path"], found["rights"][3] == "s")


def _own_bytes(mapping: _Mapping) -> int:
    """Return the size of the modified pages of a private mapping. They differ from the file."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="surrogateescape")
    _, found, after = text.partition(f"{mapping.start:08x}-{mapping.stop:08x} ")
    if not found:
        return mapping.stop - mapping.start
    lines = after.partition("VmFlags")[0]
    return sum(int(kilobytes) for kilobytes in _OWN.findall(lines)) << 10


def _part(mapping: _Mapping, address: int, nbytes: int) -> FilePart | None:
    offset = mapping.offset + address - mapping.start
    try:
        found = os.stat(mapping.path)
    except OSError:  # deleted, or never had a path
        return None
    if found.st_ino != mapping.inode or found.st_size < offset + nbytes:
        return None
    return FilePart(mapping.path, offset, nbytes, found.st_ino)


def map_part(part: FilePart) -> memoryview:
    """Map a file range copy-on-write. Writes do not change the file."""
    start = part.offset - part.offset % mmap.ALLOCATIONGRANULARITY
    length, rights = part.offset - start + part.nbytes, mmap.PROT_READ | mmap.PROT_WRITE
    try:
        with open(part.path, "rb") as file:
            if os.fstat(file.fileno()).st_ino != part.inode:
                raise OSError(errno.ESTALE, "another file was put in its place")
            mapped = mmap.mmap(file.fileno(), length, mmap.MAP_PRIVATE, rights, offset=start)
    except (OSError, ValueError) as error:  # ValueError if the file has become shorter
        raise RunError(
            f"{part.path}, from which the task's data is mapped, cannot be mapped: {error}"
        ) from None
    return memoryview(mapped)[part.offset - start :]
