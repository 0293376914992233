"""Pause of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector for code that creates many small objects and few cycles, because collections slow
    it down."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            _let_all_age()
            gc.enable()


def _let_all_age() -> None:
    """Move all objects to the oldest generation. Otherwise the collector scans all young objects when it resumes."""
    if not gc.get_freeze_count():  # unfreeze would also affect objects frozen by the caller
        gc.freeze()
        gc.unfreeze()
