"""One strategy of a comparison: its runs, or the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError
from paceline.task.fingerprint import differences

if TYPE_CHECKING:
    from paceline.runs.run import Run

YARDSTICK = "single"
"""Baseline for speed-ups. It runs on one worker, on a cluster of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One strategy of a comparison."""

    name: str
    """Strategy spec, such as "k-sync:k=3"."""
    runs: tuple[Run, ...] = ()
    """Its repeats. Empty if it failed."""
    error: str | None = None
    """Reason of the failure; None if it did not fail."""

    def __post_init__(self) -> None:
        if bool(self.runs) == (self.error is not None):
            found = f"{len(self.runs)} runs and the error {self.error!r}"
            raise ConfigurationError(f"entry {self.name}", "must have either runs or an error", found)

    @property
    def strategy(self) -> str:
        """Strategy spec, without the suffix that distinguishes several entries of it."""
        return self.runs[0].strategy if self.runs else self.name

    @property
    def typical(self) -> Run:
        """The representative run: the one with the median time."""
        ordered = sorted(self.runs, key=_time_s)
        return ordered[(len(ordered) - 1) // 2]


def what_differs(entries: Sequence[Entry]) -> list[str]:
    """Return the known differences of the entries in task and data."""
    return differences({entry.name: [run.fingerprint for run in entry.runs] for entry in entries})


def _time_s(run: Run) -> float:
    reached_s = run.seconds_to_target
    return run.seconds if reached_s is None else reached_s
