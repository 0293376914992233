"""Waits, within reason, for a moment in which the machine does nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["busy_cores", "wait_until_quiet"]

_SAMPLE_S = 0.2
_QUIET_CORES = 0.1


def wait_until_quiet(limit_s: float = 3.0) -> None:
    """Return at the first quiet moment, or when the limit is over: a busy machine shall be slow, not for ever."""
    until_s = time.monotonic() + limit_s
    while busy_cores() > _QUIET_CORES and time.monotonic() < until_s:
        pass


def busy_cores() -> float:
    """How many cores others use at present. Called while whoever is measured sleeps."""
    before = _idle_s()
    time.sleep(_SAMPLE_S)
    return max(0.0, (os.cpu_count() or 1) - (_idle_s() - before) / _SAMPLE_S)


def _idle_s() -> float:
    """Seconds that all cores together have been idle. 0 where the system does not tell: then all seem busy."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
