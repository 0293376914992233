"""What ended a rank's program, as an error that names the rank and shows the user's own lines."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path

import torch

from paceline.costs.units import format_bytes
from paceline.errors import OutOfMemoryError, PacelineError, WorkerError

__all__ = ["failure_of"]

_PACELINE = str(Path(__file__).parents[2]) + os.sep


def failure_of(rank: int, step: int, error: BaseException) -> PacelineError:
    """An error of Paceline's own as it is; any other as a WorkerError."""
    if isinstance(error, PacelineError):
        return error
    if _lacks_memory(error):
        return OutOfMemoryError(rank, step, _trimmed(error), _wanted(str(error)))
    return WorkerError(rank, step, _trimmed(error))


def _lacks_memory(error: BaseException) -> bool:
    """For the processor's memory torch has no type of error, only words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def _wanted(words: str) -> str:
    """How much was asked for, if the words of an error say so."""
    found = re.search(r"tried to allocate ([\d.]+) (\w+)", words, re.IGNORECASE)
    if found is None:
        return ""
    amount, unit = found.groups()
    return format_bytes(int(amount)) if unit == "bytes" else f"{amount} {unit}"


def _trimmed(error: BaseException) -> str:
    """The traceback without the frames of Paceline that called the user."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACELINE)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own or list(frames))]
    return "".join(lines) + "".join(traceback.format_exception_only(error))
