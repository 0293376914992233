"""What ended a rank's program, as an error that names the rank and shows the user's own lines."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from paceline.errors import PacelineError, WorkerError

__all__ = ["failure_of"]

_PACELINE = str(Path(__file__).parents[2]) + os.sep


def failure_of(rank: int, step: int, error: BaseException) -> PacelineError:
    """An error of Paceline's own as it is; any other as a WorkerError."""
    return error if isinstance(error, PacelineError) else WorkerError(rank, step, _trimmed(error))


def _trimmed(error: BaseException) -> str:
    """The traceback without the frames of Paceline that called the user."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACELINE)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own or list(frames))]
    return "".join(lines) + "".join(traceback.format_exception_only(error))
