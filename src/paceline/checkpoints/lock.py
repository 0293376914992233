"""The lock of a checkpoint folder: one run at a time writes there.

The system releases the lock when the driver's process ends or is killed. It is `flock`, which a forked child would
share with the driver. A child therefore closes its copy of the file immediately, and cannot hold the lock longer than
the driver.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline.files.writing import save_errors

_log = logging.getLogger("paceline")

LOCK = ".lock"
"""A file in the folder. Its text names the process that holds the lock."""
_MOST_BYTES = 400
_held: dict[str, tuple[Path, int]] = {}
"""The lock files that this process has open, by the attempt that opened them."""


def lock_folder(folder: Path, attempt: str, launch: str = "") -> None:
    """Lock the folder for this attempt until `unlock_folder`, or until this process ends.

    Raise ConfigurationError with the process and host of the other run if another run has the lock. If the file system
    has no locks, log a warning; the run is then not protected.
    """
    path, fd = folder / LOCK, -1
    while fd < 0:
        fd = _open(path)
        try:
            _lock(fd, folder, fcntl.LOCK_EX)
        except BaseException:
            os.close(fd)
            raise
        if not _is_file(path, fd):  # the previous run removed the file after this process had opened it
            os.close(fd)
            fd = -1
    _held[attempt] = path, fd
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} on host {socket.gethostname()}\n{launch}".encode(), 0)


def check_unlocked(folder: Path, launch: str) -> None:
    """Refuse a folder that another run has locked, as `lock_folder` does. Ignore earlier runs of the same launch."""
    if not os.path.lexists(folder / LOCK):
        return
    fd = _open(folder / LOCK)
    try:
        _lock(fd, folder, fcntl.LOCK_SH, launch)  # shared: other processes of this launch do the same
    finally:
        os.close(fd)


def unlock_folder(attempt: str) -> None:
    """Release the lock and remove its file. Do nothing if there is no lock."""
    path, fd = _held.pop(attempt, (None, -1))
    if path is None:
        return
    with contextlib.suppress(OSError):  # the folder may have been removed
        if _is_file(path, fd):
            path.unlink()
    os.close(fd)


def _open(path: Path) -> int:
    with save_errors(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _lock(fd: int, folder: Path, how: int, launch: str = "") -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            text = "%s has no file locks (%s): a second run in this folder would not be refused"
            _log.warning(text, folder, error.strerror)
            return
        owner, _, its_launch = os.pread(fd, _MOST_BYTES, 0).decode(errors="replace").partition("\n")
        if launch and its_launch == launch:
            return
        bound, remedy = (
            "must be a folder that no other run uses",
            "wait until that run ends, stop it, or use another folder",
        )
        held = f"{folder}, which {owner or 'another process'} writes to"
        raise ConfigurationError("checkpoint", bound, held, remedy) from None


def _is_file(path: Path, fd: int) -> bool:
    """Return whether the path still refers to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _close_in_child() -> None:
    for _, fd in _held.values():
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
