"""Simulated predictions compared with measured times of the same strategies."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.analysis.comparison.comparison import Comparison
from paceline.analysis.comparison.table import NOTHING, Row
from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError
from paceline.show.tables import plain_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRow:
    """One strategy, judged by its time to the target, or by the time of the whole run if there is no target."""

    predicted: Row
    measured: Row | None = None
    """None if it was not run."""

    @property
    def error(self) -> float | None:
        """Relative difference of the measured from the predicted time; negative if shorter, None if unknown."""
        measured_s = None if self.measured is None else self.measured.time_s
        predicted_s = self.predicted.time_s
        return measured_s / predicted_s - 1 if measured_s is not None and predicted_s else None

    @property
    def texts(self) -> list[str]:
        """Name, predicted seconds, speed-up, measured seconds and error, as text."""
        speed_up = self.predicted.speed_up
        return [
            self.predicted.name,
            in_words(self.predicted),
            NOTHING if speed_up is None else f"{speed_up:.2f}",
            NOTHING if self.measured is None else in_words(self.measured),
            NOTHING if self.error is None else f"{100 * self.error:+.1f} %",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A comparison of simulated workers, and the same with real workers for some of its strategies.

    As text it is a table, fastest first.
    """

    title: str
    predicted: Comparison
    measured: Comparison | None = None
    """None if no strategy has been run on real workers yet."""

    def __post_init__(self) -> None:
        known = {entry.name for entry in self.predicted.entries}
        for entry in self.measured.entries if self.measured is not None else ():
            if entry.name not in known:
                remedy = f"it has {', '.join(sorted(known))}"
                raise ConfigurationError(
                    "measured", "must have only strategies of predicted", entry.name, remedy
                )

    @property
    def rows(self) -> list[ProofRow]:
        """One row per strategy, in the order of the predicted times.

        Strategies that did not reach the target are last.
        """
        ran = {row.name: row for row in self.measured.table} if self.measured is not None else {}
        table = sorted(self.predicted.table, key=lambda row: (row.time_s is None, row.time_s or 0.0))
        return [ProofRow(predicted=row, measured=ran.get(row.name)) for row in table]

    @property
    def largest_error(self) -> float | None:
        """Largest relative difference between a measured and a predicted time; None if there are none to compare."""
        return max((abs(row.error) for row in self.rows if row.error is not None), default=None)

    @property
    def header(self) -> list[str]:
        """Column titles."""
        titles = ["strategy", "predicted", "speed-up", "measured", "error"]
        return titles if self.measured is not None else titles[:3]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as texts."""
        return [row.texts[: len(self.header)] for row in self.rows]

    def __str__(self) -> str:
        return plain_table(self.header, self.cells)


def in_words(row: Row) -> str:
    """Return the time as text, or the reason that there is none."""
    if row.time_s is None:
        return "not reached" if row.error is None else "failed"
    return format_seconds(row.time_s)
