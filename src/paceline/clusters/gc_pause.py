"""Pauses Python's garbage collector for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_paused"]


@contextmanager
def gc_paused() -> Iterator[None]:
    """For code that makes many small objects and hardly any cycles: searching for them would take much of its time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            _let_all_age()
            gc.enable()


def _let_all_age() -> None:
    """Make every object an old one, or else the collector would go through all young ones when it resumes."""
    if not gc.get_freeze_count():  # or else objects that the caller has frozen would thaw
        gc.freeze()
        gc.unfreeze()
