"""One strategy of a comparison: its runs, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError
from paceline.fingerprint import differences

if TYPE_CHECKING:
    from paceline.run import Run

__all__ = ["YARDSTICK", "Entry", "what_differs"]

YARDSTICK = "single"
"""The strategy that the others' speed-up is over. It runs on one worker, whatever the cluster's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One strategy of a comparison."""

    name: str
    """Its words, such as "k-sync:k=3"."""
    runs: tuple[Run, ...] = ()
    """Its repeats. Empty if it failed."""
    error: str | None = None
    """Why it failed."""

    def __post_init__(self) -> None:
        if bool(self.runs) == (self.error is not None):
            found = f"{len(self.runs)} runs and the error {self.error!r}"
            raise ConfigurationError(f"entry {self.name}", "must have either runs or an error", found)

    @property
    def strategy(self) -> str:
        """The strategy's words, without what a name may add to tell several entries of it apart."""
        return self.runs[0].strategy if self.runs else self.name

    @property
    def typical(self) -> Run:
        """The run to look at where one has to stand for all: that of the middle time."""
        ordered = sorted(self.runs, key=_time_s)
        return ordered[(len(ordered) - 1) // 2]


def what_differs(entries: Sequence[Entry]) -> list[str]:
    """In what the entries did not learn the same; empty if they did, as far as they know."""
    return differences({entry.name: [run.fingerprint for run in entry.runs] for entry in entries})


def _time_s(run: Run) -> float:
    reached_s = run.seconds_to_target
    return run.seconds if reached_s is None else reached_s
