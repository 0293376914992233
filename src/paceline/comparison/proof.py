"""What a simulation predicted, beside what the same strategies took when they ran."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.comparison.comparison import Comparison
from paceline.comparison.table import NOTHING, Row
from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError
from paceline.tables import plain_table

__all__ = ["Proof", "ProofRow", "in_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRow:
    """One strategy, judged by its time to the target, or by that of the whole run where there is no target."""

    predicted: Row
    measured: Row | None = None
    """None: it was not run."""

    @property
    def error(self) -> float | None:
        """By what share of the predicted time the measured one is longer; below 0 if it is shorter."""
        measured_s = None if self.measured is None else self.measured.time_s
        predicted_s = self.predicted.time_s
        return measured_s / predicted_s - 1 if measured_s is not None and predicted_s else None

    @property
    def texts(self) -> list[str]:
        """Name, predicted seconds, speed-up, measured seconds and error, for people."""
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
    """A comparison of simulated workers and, of some of its strategies, the same on workers that are not simulated.

    As text it is a table, the quickest first.
    """

    title: str
    predicted: Comparison
    measured: Comparison | None = None
    """None: nothing has been run yet."""

    def __post_init__(self) -> None:
        known = {entry.name for entry in self.predicted.entries}
        for entry in self.measured.entries if self.measured is not None else ():
            if entry.name not in known:
                remedy = f"it has {', '.join(sorted(known))}"
                raise ConfigurationError(
                    "measured", "must have strategies of predicted alone", entry.name, remedy
                )

    @property
    def rows(self) -> list[ProofRow]:
        """A row a strategy, in the order of the predicted times. Who does not get there comes last."""
        ran = {row.name: row for row in self.measured.table} if self.measured is not None else {}
        table = sorted(self.predicted.table, key=lambda row: (row.time_s is None, row.time_s or 0.0))
        return [ProofRow(predicted=row, measured=ran.get(row.name)) for row in table]

    @property
    def largest_error(self) -> float | None:
        """The largest share by which a measured time differs from the predicted one. None: nothing to compare."""
        return max((abs(row.error) for row in self.rows if row.error is not None), default=None)

    @property
    def header(self) -> list[str]:
        """The texts over the columns."""
        titles = ["strategy", "predicted", "speed-up", "measured", "error"]
        return titles if self.measured is not None else titles[:3]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as texts."""
        return [row.texts[: len(self.header)] for row in self.rows]

    def __str__(self) -> str:
        return plain_table(self.header, self.cells)


def in_words(row: Row) -> str:
    """How long it took, or why there is no such time."""
    if row.time_s is None:
        return "not reached" if row.error is None else "failed"
    return format_seconds(row.time_s)
