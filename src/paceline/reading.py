"""Folders that somebody else may have written: read without leaving them, and without trust in what they say.

Only regular files are opened, never links, pipes or devices, and none that is too large. Values are asked for by name
and kind. Whatever is wrong becomes one error, which names the file and says what it found.
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

from paceline.checksums import Checksum, hash_file
from paceline.errors import ConfigurationError, DamagedError
from paceline.writing import SAVED

__all__ = [
    "Fields",
    "Folder",
    "checksum",
    "clean",
    "list_of",
    "mapping_of",
    "number",
    "optional",
    "parse_json",
    "seconds",
    "text",
    "whole",
]

T = TypeVar("T")
K = TypeVar("K")
Kind: TypeAlias = Callable[[object], T]

_MOST_WHOLE = 2**63 - 1
_LONGEST_REASON = 300


class Folder:
    """A saved folder. A save that was cut short may have left files in `.saved`: these are the newer ones."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def has(self, name: str) -> bool:
        return os.path.lexists(self._place(name))

    def folder(self, name: str) -> Folder:
        """A folder inside of this one, by a path that cannot lead outside."""
        inner, parts = self, PurePosixPath(name).parts
        if not parts or {"/", ".."} & {*parts} or "\0" in name:
            raise self._without(f"the folder {name[:80]!r}", "name one inside of this folder")
        for part in parts:
            place = inner._place(part)
            if not os.path.lexists(place) or not stat.S_ISDIR(place.lstat().st_mode):
                raise self._without(
                    f"the folder {name[:80]!r}", f"{part[:80]!r} is no folder, or a link to one"
                )
            inner = Folder(place)
        return inner

    @contextmanager
    def opened(self, name: str, *, most_bytes: int | None = None) -> Iterator[BinaryIO]:
        """The file. What is wrong with it, and what is raised while it is read, becomes an error that names it."""
        try:
            with _open(self._place(name), most_bytes) as file:
                yield file
        except Exception as error:  # parsers raise what they like, RecursionError and MemoryError too
            raise DamagedError(str(self.path), name, _reason(error)) from error

    def verify(self, name: str, checksum: Checksum) -> None:
        """Read the file. DamagedError: it is not what was saved."""
        self.verify_size(name, checksum)  # often tells at once
        with self.opened(name) as file:
            checksum.check(hash_file(file))

    def verify_size(self, name: str, checksum: Checksum) -> None:
        """As `verify`, but the file is not read: one that was cut off or is missing is found."""
        with self.opened(name) as file:
            checksum.check_size(os.fstat(file.fileno()).st_size)

    def _place(self, name: str) -> Path:
        saved = self.path / SAVED
        if saved.is_symlink():
            raise self._without(f"no link of the name {SAVED}", "remove it")
        return saved / name if os.path.lexists(saved / name) else self.path / name

    def _without(self, what: str, remedy: str) -> ConfigurationError:
        return ConfigurationError("directory", f"must hold {what}", str(self.path), remedy)


@contextmanager
def _open(path: Path, most_bytes: int | None) -> Iterator[BinaryIO]:
    # Looked at before and after: opening a device or a pipe may have an effect, or never come back.
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
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "  # ours are, and say what is wrong
    return f"{kind}{words}"[:_LONGEST_REASON]


# Kinds of values: each takes a value that JSON gave, and returns it or raises


def parse_json(data: bytes) -> object:
    """The value of a JSON text. NaN and Infinity are taken, because metrics may be so."""
    value: object = json.loads(data.decode("utf-8"))
    return value


def clean(words: str) -> str:
    """The text without what could take command of a terminal, or could not be written as UTF-8."""
    kept = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in words)
    return words if words.isprintable() else "".join(kept)


def text(value: object) -> str:
    if not isinstance(value, str):
        raise _unlike("a text", value)
    return clean(value)


def whole(value: object) -> int:
    """A whole number that is not negative and fits 8 bytes."""
    if type(value) is not int or not 0 <= value <= _MOST_WHOLE:
        raise _unlike(f"a whole number from 0 to {_MOST_WHOLE}", value)
    return value


def number(value: object) -> float:
    """A number that a float can hold, NaN and infinity among them."""
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
    """The values of a JSON object. One that is missing or of another kind is an error that names it."""

    def __init__(self, values: object) -> None:
        self._values = mapping_of(text, lambda each: each)(values)

    def has(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, kind: Kind[T], default: object = ...) -> T:
        """The value, or the default if there is one and no value."""
        if name not in self._values and default is ...:
            raise ValueError(f"{name} is missing")
        try:
            return kind(self._values.get(name, default))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} {error}") from error


def _unlike(kind: str, value: object) -> ValueError:
    return ValueError(f"must be {kind}, but got {reprlib.repr(value)}")
