"""Rounds of measurements. Each begins when the machine is quiet, if that is soon, and their total time is limited."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_SAMPLE_S = 0.2
_QUIET_CORES = 0.1
_PATIENCE_S = 2.0
_LEAST = 3


def rounds(most: int, limit_s: float) -> Iterator[int]:
    """Yield the numbers of the rounds. On a busy machine there are fewer: none begins after the time limit."""
    until_s = time.monotonic() + limit_s
    for number in range(most):
        if number >= _LEAST and time.monotonic() > until_s:
            return
        _wait_until_quiet()
        yield number


def busy_cores() -> float:
    """Return the number of cores that other processes use. Call it while the measured processes sleep."""
    before = _idle_s()
    time.sleep(_SAMPLE_S)
    return max(0.0, (os.cpu_count() or 1) - (_idle_s() - before) / _SAMPLE_S)


def _wait_until_quiet() -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while busy_cores() > _QUIET_CORES and time.monotonic() < until_s:
        pass


def _idle_s() -> float:
    """Return the total idle seconds of all cores. 0 if unknown: all cores then appear busy."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
