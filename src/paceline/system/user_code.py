"""Calls of user code. Errors are reported with the user's traceback, without Paceline's frames."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, TaskError


def name_of(function: Any) -> str:
    """Return the name of a function or callable object. A string is returned as is; None gives an empty string."""
    while isinstance(function, partial):
        function = function.func
    if function is None or isinstance(function, str):
        return function or ""
    return str(getattr(function, "__name__", type(function).__name__))


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error in user code, without the frames of Paceline and importlib."""
    report = traceback.TracebackException.from_exception(error)
    pending = [report]
    while pending:
        part = pending.pop()
        kept = [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_USERS)]
        part.stack = traceback.StackSummary.from_list(kept)
        linked = (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ()))
        pending += [other for other in linked if other is not None]
    return "".join(report.format()).rstrip()


_NOT_THE_USERS = (str(Path(__file__).resolve().parents[1]) + os.sep, "<frozen importlib")


@contextmanager
def user_code(failure: str) -> Iterator[None]:
    """Convert any exception raised by user code in this block to a TaskError with the user's traceback."""
    try:
        yield
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(failure, user_traceback(error)) from None
