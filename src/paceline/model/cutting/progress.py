"""Progress of slow traces: torch.export takes about 10 ms for each operation."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

_log = logging.getLogger("paceline")

PERIOD_S = 20.0
"""Seconds until the first report, and between reports."""


@contextlib.contextmanager
def report_progress(module: nn.Module, now: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Log how many layers have been called, if tracing the module takes longer than `PERIOD_S`."""
    count, total, start_s, reported_s = 0, sum(1 for _ in module.modules()), now(), now()

    def note(layer: nn.Module, _: Any) -> None:
        nonlocal count, reported_s
        count += 1
        if now() - reported_s >= PERIOD_S:
            reported_s = now()
            words = "tracing %s: %d layers called after %.0f s; it has %d layers"
            _log.warning(words, type(module).__name__, count, reported_s - start_s, total)

    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()
