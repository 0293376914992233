"""Files that a command is asked to write, checked before it does anything."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import ConfigurationError, RunError

__all__ = ["check_directory", "check_picture", "check_writable", "save_picture"]


def check_writable(option: str, path: Path) -> None:
    """Refuse at once what could not be written in the end."""
    there = path if path.exists() else path.absolute().parent
    if path.is_dir() or not os.access(there, os.W_OK) or not path.absolute().parent.is_dir():
        bound = "must be a file that can be written, in a directory that exists"
        raise ConfigurationError(option, bound, str(path), "name another")


def check_directory(option: str, path: Path) -> None:
    """Refuse at once a directory in which nothing could be saved in the end. It need not exist yet."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(option, "must be a directory that can be written", str(path), "name another")


def check_picture(option: str, path: Path) -> None:
    """Refuse at once a picture that could not be drawn or written in the end."""
    if path.suffix != ".svg":
        raise ConfigurationError(option, "must end in .svg", str(path), "pictures are written as SVG alone")
    check_writable(option, path)


def save_picture(picture: str, path: Path) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise RunError(f"the picture could not be saved: {error}") from error
