"""The error that ended a rank's program. It names the rank and shows the user's own lines."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch

from paceline.costs.units import format_bytes
from paceline.errors import OutOfMemoryError, PacelineError, RunError, WorkerError

E = TypeVar("E", bound=BaseException)

_PACELINE = str(Path(__file__).parents[2]) + os.sep


def failure_of(rank: int, step: int, error: BaseException) -> PacelineError:
    """Return Paceline's own errors unchanged, and any other error as a WorkerError."""
    if isinstance(error, PacelineError):
        return error
    if _lacks_memory(error):
        return OutOfMemoryError(rank, step, _trimmed(error), _wanted(str(error)))
    return WorkerError(rank, step, _trimmed(error))


def _lacks_memory(error: BaseException) -> bool:
    """Return whether memory ran out. For CPU memory torch has no error type, only a message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def _wanted(words: str) -> str:
    """Return the amount that was requested, if the message contains it."""
    found = re.search(r"tried to allocate ([\d.]+) (\w+)", words, re.IGNORECASE)
    if found is None:
        return ""
    amount, unit = found.groups()
    return format_bytes(int(amount)) if unit == "bytes" else f"{amount} {unit}"


def _trimmed(error: BaseException) -> str:
    """Return the traceback without the frames of Paceline that called the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACELINE)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own or list(frames))]
    return "".join(lines) + "".join(traceback.format_exception_only(error))


def with_holds(error: E, holds: Mapping[int, str]) -> E:
    """Return the same error. Its text now includes what the named ranks hold of the model."""
    if isinstance(error, RunError):
        error.holds = holds
    return error
