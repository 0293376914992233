"""Atomic writes of files and folders.

A file is written to a temporary name, synced to disk, and renamed. A folder of files has one more stage:

1. All new files are written into `FOLDER/.saving`, which is never read. A failure removes it.
2. `.saving` is renamed to `.saved`. From now on the new files are valid: `paceline.files.reading` looks there first.
3. Each file is renamed to its final name, and `.saved` is removed.

A process that is killed therefore leaves the old files (before 2) or the new ones (after 2) intact. The next save
cleans up. Other files of the folder are never changed. The disk temporarily holds the old and the new files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import ConfigurationError, SaveError

SAVED = ".saved"
"""Holds complete files of a folder that have not been renamed to their final names yet."""
_SAVING = ".saving"


def check_folder(argument: str, folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in which no file can be created. A file is created to test this: permissions are not reliable.

    The folder need not exist. The test file and new folders are removed.
    """
    place = Path(folder).absolute()
    try:
        with _made(place, always_remove=True):
            _create_and_remove(place)
    except OSError as error:
        remedy = f"use another path ({error.strerror or error})"
        raise ConfigurationError(argument, "must be a writable directory", str(folder), remedy) from error


def check_file(argument: str, path: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be written. Its folder must exist. The test leaves no file."""
    place = Path(os.path.realpath(path))
    try:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not place.exists() or place.is_file():  # a device or a pipe is written to directly
            _create_and_remove(place.parent)
    except OSError as error:
        bound = "must be a writable file in an existing directory"
        remedy = f"use another path ({error.strerror or error})"
        raise ConfigurationError(argument, bound, str(path), remedy) from error


def _create_and_remove(folder: Path) -> None:
    beside = folder / f"{_SAVING}-{secrets.token_hex(4)}"
    with open(beside, "xb"):
        pass
    beside.unlink()


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write the file atomically. On failure the old file is unchanged. A device or a pipe is written to directly."""
    with replacing(path) as out:
        out.write(data)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Provide a stream. Its content replaces the file when the block ends. If the block fails, the old file is
    unchanged.

    A device or a pipe is written to directly.
    """
    with save_errors(Path(path)):
        place = Path(os.path.realpath(path))
        before = place.stat() if place.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):
            with open(place, "wb") as out:  # a rename would replace /dev/stdout by a file
                yield out
            return
        beside = place.with_name(f"{_SAVING}-{secrets.token_hex(4)}")
        try:
            with open(beside, "xb") as out:
                if before is not None:
                    os.fchmod(out.fileno(), stat.S_IMODE(before.st_mode))
                yield out
            to_disk(beside)
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)
        to_disk(place.parent)


def write_folder(folder: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Add the files that `write` creates in an empty folder to this folder, atomically.

    Files with the same names are replaced, all or none of them. Other files in the folder are not changed.
    """
    place = Path(folder)
    with save_errors(place), _made(place), _locked(place):
        _clear_up(place)
        saving = place / _SAVING
        try:
            saving.mkdir()
            write(saving)
            _check_places(saving, place)
            _tree_to_disk(saving)
            saving.rename(place / SAVED)
        except BaseException:
            shutil.rmtree(saving, ignore_errors=True)
            raise
        to_disk(place)
        _settle(place)


def finite(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON lacks, also inside lists and mappings."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def save_errors(place: Path) -> Iterator[None]:
    """Convert an OSError of the block to an error that names the path and the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(error.errno, reason, str(place)) from error


@contextlib.contextmanager
def _made(folder: Path, *, always_remove: bool = False) -> Iterator[None]:
    """Create the folder for the block. If the block fails, remove the folders that were created."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    removes = True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        removes = always_remove
    finally:
        for place in missing if removes else ():  # the deepest first
            with contextlib.suppress(OSError):
                place.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock, so that two processes do not save into one folder at the same time.

    It is released if the process ends.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(error.errno, "another process is saving into this folder") from error
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        os.close(fd)


def _clear_up(folder: Path) -> None:
    """Finish a save that was killed: remove its files if incomplete, rename them into place if complete."""
    if os.path.lexists(folder / _SAVING):
        shutil.rmtree(folder / _SAVING)
    if os.path.lexists(folder / SAVED):
        _settle(folder)


def _check_places(saving: Path, folder: Path) -> None:
    """Check that every new file can be renamed to its final name. An error during the renames could not be undone."""
    for new in saving.rglob("*"):
        place = folder / new.relative_to(saving)
        if not os.path.lexists(place):
            continue
        if new.is_dir() and (place.is_symlink() or not place.is_dir()):
            raise OSError(None, f"{place} must be a folder, or not exist")
        if not new.is_dir() and place.is_dir() and not place.is_symlink():
            raise OSError(None, f"{place} must be a file, or not exist")


def _settle(folder: Path) -> None:
    """Rename everything in `.saved` to its final name.

    A folder becomes `.saved` of its target and is settled there.
    """
    saved = folder / SAVED
    if saved.is_symlink():
        raise OSError(None, f"{saved} must not be a link")
    for new in sorted(saved.iterdir()):
        place = folder / new.name
        if new.is_dir():
            place.mkdir(exist_ok=True)
            _clear_up(place)
            new.rename(place / SAVED)
            _settle(place)
        else:
            new.replace(place)
    to_disk(folder)
    saved.rmdir()


def _tree_to_disk(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        to_disk(path)


def to_disk(path: Path) -> None:
    """Sync a file, or the renames in a folder, to disk, so that they survive a power failure."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do this for a folder
            raise
    finally:
        os.close(fd)
