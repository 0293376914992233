"""Faults to inject into a run: which rank fails, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral

from paceline.costs.units import format_seconds, parse_seconds
from paceline.errors import ConfigurationError

FORMS = 'write pl.faults.Kill(1, at="5ms") or pl.faults.Kill(1, step=3)'


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a rank `at` a time after the start of the run, or at the start of the rank's own step number `step`.

    `at` is text such as "5ms", or seconds. A rank that has already ended is not killed.
    """

    rank: int
    at: str | float | None = None
    step: int | None = None
    at_s: float | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_count(self.rank, "Kill.rank")
        if (self.at is None) == (self.step is None):
            raise ConfigurationError("Kill", "must have either at or step", (self.at, self.step), FORMS)
        if self.step is not None:
            _check_count(self.step, "Kill.step")
        object.__setattr__(self, "at_s", None if self.at is None else parse_seconds(self.at, "Kill.at"))

    def __str__(self) -> str:
        when = f"in step {self.step}" if self.at_s is None else f"at {format_seconds(self.at_s)}"
        return f"rank {self.rank} killed {when}"


def _check_count(value: object, argument: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ConfigurationError(argument, "must be a whole number from 0", value, FORMS)
