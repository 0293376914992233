"""Reading folders that are not trusted: nothing outside the folder is read, and all content is checked.

Only regular files are opened, never links, pipes or devices, and no file that is too large. Values are read by name and
type. Any problem raises one error, which names the file and the problem.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias, TypeVar, cast

from paceline.errors import ConfigurationError, DamagedError
from paceline.files.checksums import Checksum, hash_file
from paceline.files.writing import SAVED

T = TypeVar("T")
K = TypeVar("K")
Kind: TypeAlias = Callable[[object], T]

_MOST_WHOLE = 2**63 - 1
_LONGEST_REASON = 300


class Folder:
    """A saved folder. An interrupted save may have left files in `.saved`, which are the newer ones."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def has(self, name: str) -> bool:
        return os.path.lexists(self._place(name))

    def folder(self, name: str) -> Folder:
        """Return a folder inside this one. Raise ConfigurationError for a path that leads outside."""
        inner, parts = self, PurePosixPath(name).parts
        if not parts or {"/", ".."} & {*parts} or "\0" in name:
            raise self._without(f"the folder {name[:80]!r}", "use a path inside this folder")
        for part in parts:
            place = inner._place(part)
            if not os.path.lexists(place) or not stat.S_ISDIR(place.lstat().st_mode):
                raise self._without(
                    f"the folder {name[:80]!r}", f"{part[:80]!r} is not a folder, or is a link"
                )
            inner = Folder(place)
        return inner

    @contextmanager
    def opened(self, name: str, *, most_bytes: int | None = None) -> Iterator[BinaryIO]:
        """Open a file. Any problem with it, and any exception in the block, becomes an error that names the file."""
        try:
            with _open(self._place(name), most_bytes) as file:
                yield file
        except Exception as error:  # parsers may raise anything, including RecursionError and MemoryError
            raise DamagedError(str(self.path), name, _reason(error)) from error

    def verify(self, name: str, checksum: Checksum) -> None:
        """Read the file. Raise DamagedError if it does not match the checksum."""
        self.verify_size(name, checksum)  # check the size first, because this is fast and detects most damage
        with self.opened(name) as file:
            checksum.check(hash_file(file))

    def verify_size(self, name: str, checksum: Checksum) -> None:
        """Compare the file size without reading the file. This detects truncated and missing files."""
        with self.opened(name) as file:
            checksum.check_size(os.fstat(file.fileno()).st_size)

    def _place(self, name: str) -> Path:
        saved = self.path / SAVED
        if saved.is_symlink():
            raise self._without(f"no link with the name {SAVED}", "remove it")
        return saved / name if os.path.lexists(saved / name) else self.path / name

    def _without(self, what: str, remedy: str) -> ConfigurationError:
        return ConfigurationError("directory", f"must hold {what}", str(self.path), remedy)


@contextmanager
def _open(path: Path, most_bytes: int | None) -> Iterator[BinaryIO]:
    # Checked before and after opening: opening a device or a pipe may have side effects, or block.
    _check_regular(path.lstat())
    with open(path, "rb", opener=_opener) as file:
        found = os.fstat(file.fileno())
        _check_regular(found)
        if most_bytes is not None and found.st_size > most_bytes:
            raise ValueError(f"it must have at most {most_bytes:,} bytes, but it has {found.st_size:,}")
        yield file


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _check_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it must be a regular file, not a link, folder, pipe or device")


def _reason(error: Exception) -> str:
    words = " ".join(clean(str(error)).split())
    # A ValueError of this package has a complete message.
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{kind}{words}"[:_LONGEST_REASON]


# Types of values: each function takes a value from JSON, and returns it or raises


def parse_json(data: bytes) -> object:
    """Parse a JSON text. NaN and Infinity are accepted, because metrics may have these values."""
    value: object = json.loads(data.decode("utf-8"))
    return value


def clean(words: str) -> str:
    """Return the text without terminal control characters and without characters that UTF-8 cannot encode."""
    kept = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in words)
    return words if words.isprintable() else "".join(kept)


def text(value: object) -> str:
    if not isinstance(value, str):
        raise _unlike("a text", value)
    return clean(value)


def whole(value: object) -> int:
    """Return a non-negative integer that fits 8 bytes."""
    if type(value) is not int or not 0 <= value <= _MOST_WHOLE:
        raise _unlike(f"a whole number from 0 to {_MOST_WHOLE}", value)
    return value


def number(value: object) -> float:
    """Return a number that fits a float, including NaN and infinity."""
    fits = isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)
    if not fits:
        raise _unlike("a number that fits 8 bytes", value)
    return cast(float, value)


def seconds(value: object) -> float:
    found = number(value)
    if not 0 <= found < math.inf:
        raise _unlike("finite and at least 0", value)
    return found


def optional(kind: Kind[T]) -> Kind[T | None]:
    return lambda value: None if value is None else kind(value)


def list_of(kind: Kind[T]) -> Kind[list[T]]:
    def check(value: object) -> list[T]:
        if not isinstance(value, list):
            raise _unlike("a list", value)
        return [kind(each) for each in value]

    return check


def mapping_of(key: Kind[K], kind: Kind[T]) -> Kind[dict[K, T]]:
    def check(value: object) -> dict[K, T]:
        if not isinstance(value, dict):
            raise _unlike("an object", value)
        return {key(name): kind(each) for name, each in value.items()}

    return check


def checksum(value: object) -> Checksum:
    fields = Fields(value)
    found = fields.get("sha256", text)
    if not re.fullmatch("[0-9a-f]{64}", found):
        raise _unlike("64 hexadecimal digits", found)
    return Checksum(fields.get("bytes", whole), found)


class Fields:
    """The values of a JSON object. A missing value or a value of another type raises an error that names it."""

    def __init__(self, values: object) -> None:
        self._values = mapping_of(text, lambda each: each)(values)

    def has(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, kind: Kind[T], default: object = ...) -> T:
        """Return the value; the default if there is no value. Without a default a missing value is an error."""
        if name not in self._values and default is ...:
            raise ValueError(f"{name} is missing")
        try:
            return kind(self._values.get(name, default))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} {error}") from error


def _unlike(kind: str, value: object) -> ValueError:
    return ValueError(f"must be {kind}, but got {reprlib.repr(value)}")
