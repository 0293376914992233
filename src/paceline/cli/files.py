"""Checks of output files, before a command does anything."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigurationError, RunError
from paceline.files.writing import check_file as check_writable
from paceline.files.writing import check_folder as check_directory

__all__ = ["check_directory", "check_picture", "check_writable", "save_picture"]


def check_picture(option: str, path: Path) -> None:
    """Reject a picture that could not be drawn or written, before the command starts."""
    if path.suffix != ".svg":
        raise ConfigurationError(option, "must end in .svg", str(path), "pictures are written as SVG only")
    check_writable(option, path)


def save_picture(picture: str, path: Path) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise RunError(f"the picture could not be saved: {error}") from error
