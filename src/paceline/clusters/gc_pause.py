"""Python's collector of cyclic garbage, at rest for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_paused"]


@contextmanager
def gc_paused() -> Iterator[None]:
    """For what makes many small objects and hardly any cycles: looking for those would take a good part of its time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            _let_all_age()
            gc.enable()


def _let_all_age() -> None:
    """Make every object an old one. The collector would look through all young ones at once when it goes on."""
    if not gc.get_freeze_count():  # else the caller's frozen ones would thaw
        gc.freeze()
        gc.unfreeze()
