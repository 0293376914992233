"""Files and folders that are either written whole or left as they were.

A file is written beside its place, brought to the disk, and renamed. A folder of files has one more stage:

1. All new files are written into `FOLDER/.saving`, which nobody reads. A failure removes it.
2. `.saving` is renamed to `.saved`. From now on the new files count, for `paceline.reading` looks there first.
3. Each file is renamed to its own place, and `.saved` is removed.

So a process that is killed leaves the old files whole (before 2) or the new ones (after it). The next save clears up.
Other files of the folder are never touched. For a while the disk holds the old files and the new ones.
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

from paceline.errors import SaveError

__all__ = ["SAVED", "finite", "replacing", "save_errors", "to_disk", "write_file", "write_folder"]

SAVED = ".saved"
"""Holds files of a folder that are complete and have not been renamed to their places yet."""
_SAVING = ".saving"


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write the file, or leave the one that is there as it was. A device or a pipe is written to directly."""
    with replacing(path) as out:
        out.write(data)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """What is written becomes the file when the block ends; if it fails, the file that is there stays as it was.

    A device or a pipe is written to directly.
    """
    with save_errors(Path(path)):
        place = Path(os.path.realpath(path))
        before = place.stat() if place.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):
            with open(place, "wb") as out:  # renaming would put a file in the place of /dev/stdout
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
    """Make the folder hold what `write` puts into the empty folder that it is given, besides what it holds already.

    Files of the same names are replaced, all or none of them. Nothing else in the folder is touched.
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
    """The value for JSON, which has no NaN and no infinity: None stands for them, also inside of lists and mappings."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def save_errors(place: Path) -> Iterator[None]:
    """What the system refuses becomes an error that names what was to be saved, and why it was not."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(error.errno, reason, str(place)) from error


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder exists. If the save fails, folders that were made for it go again."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for place in missing:  # the deepest first
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two processes do not save into one folder at a time. The system takes the lock from a process that dies."""
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
    """What a save that was killed has left: removed if incomplete, put in its place if complete."""
    if os.path.lexists(folder / _SAVING):
        shutil.rmtree(folder / _SAVING)
    if os.path.lexists(folder / SAVED):
        _settle(folder)


def _check_places(saving: Path, folder: Path) -> None:
    """Every new file can be renamed to its place. Afterwards would be too late to find out."""
    for new in saving.rglob("*"):
        place = folder / new.relative_to(saving)
        if not os.path.lexists(place):
            continue
        if new.is_dir() and (place.is_symlink() or not place.is_dir()):
            raise OSError(None, f"{place} must be a folder or not be there")
        if not new.is_dir() and place.is_dir() and not place.is_symlink():
            raise OSError(None, f"{place} must be a file or not be there")


def _settle(folder: Path) -> None:
    """Rename all that is in `.saved` to its place. A folder becomes the `.saved` of its place, and is settled there."""
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
    """What was written, or renamed in a folder, outlives a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do this for a folder
            raise
    finally:
        os.close(fd)
