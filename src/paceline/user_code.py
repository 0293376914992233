"""Code of the user's own that Paceline calls: what it raises is told with the user's traceback, not with ours."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.errors import PacelineError, TaskError

__all__ = ["name_of", "user_code", "user_traceback"]


def name_of(function: Any) -> str:
    """What a function, an object that can be called or a name is called; empty where there is nothing."""
    while isinstance(function, partial):
        function = function.func
    if function is None or isinstance(function, str):
        return function or ""
    return str(getattr(function, "__name__", type(function).__name__))


def user_traceback(error: BaseException) -> str:
    """The traceback of an error in the user's code, without the frames of Paceline and of importlib."""
    report = traceback.TracebackException.from_exception(error)
    pending = [report]
    while pending:
        part = pending.pop()
        kept = [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_USERS)]
        part.stack = traceback.StackSummary.from_list(kept)
        linked = (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ()))
        pending += [other for other in linked if other is not None]
    return "".join(report.format()).rstrip()


_NOT_THE_USERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen importlib")


@contextmanager
def user_code(failure: str) -> Iterator[None]:
    """Whatever the user's code raises in this block becomes a TaskError with the user's own traceback."""
    try:
        yield
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"{failure}:\n{user_traceback(error)}") from None
