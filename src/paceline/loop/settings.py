"""Settings that `paceline run` passes to the processes of a script, in one environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

VARIABLE = "PACELINE_RUN"
DEADLINE_S = 120.0
"""Seconds that a rank waits for another one that makes no progress. It waits 10 times as long for one that computes: a
user's loop may evaluate or compile between two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Options of `paceline run`, as text."""

    strategy: str | None = None
    """Spec of the strategy. None for the one in the script, or all-reduce."""
    slow: str = ""
    """Slow ranks, such as "1=2,3=4": see `parse_slow`."""
    delay: tuple[str, ...] = ()
    deadline_s: float = DEADLINE_S
    link: str = "shared-memory"
    """Link between ranks of one host: shared-memory or tcp."""
    threads: int | None = None
    seed: int = 0
    out: str | None = None
    """Folder for the run, its trace and its report. None to save nothing."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> LoopSettings:
        values = json.loads(environment.get(VARIABLE, "{}"))
        return cls(**{**values, "delay": tuple(values.get("delay", ()))})

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}
