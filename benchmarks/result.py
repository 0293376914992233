"""The result of a benchmark: rows of measurements, and goals that are met or missed."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a benchmark's table."""

    what: str
    rounds: Sequence[float]
    """Measurement of each round, in the unit of the result."""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A ratio and its bound."""

    what: str
    rounds: Sequence[float]
    """The ratio within each round."""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> float:
        return statistics.median(self.rounds)

    @property
    def met(self) -> bool:
        above = self.at_least is None or self.ratio >= self.at_least
        return above and (self.at_most is None or self.ratio <= self.at_most)

    @property
    def bound(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:.3g} to {self.at_most:.3g}"
        if self.at_least is not None:
            return f"at least {self.at_least:.3g}"
        return f"at most {self.at_most:.3g}" if self.at_most is not None else "for information"

    @property
    def verdict(self) -> str:
        if self.at_least is None and self.at_most is None:
            return ""
        return "met" if self.met else "missed"


@dataclass(slots=True, kw_only=True)
class Result:
    """A benchmark's table, its goals and notes."""

    title: str
    unit: str
    rows: list[Row]
    goals: list[Goal]
    notes: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    """Measurements that are not possible here, and their requirements."""

    @property
    def met(self) -> bool:
        return all(goal.met for goal in self.goals)

    def as_dict(self) -> dict[str, object]:
        return {
            "title": self.title,
            "unit": self.unit,
            "rows": [{"median": row.median, **dataclasses.asdict(row)} for row in self.rows],
            "goals": [
                {"ratio": goal.ratio, "verdict": goal.verdict, **dataclasses.asdict(goal)}
                for goal in self.goals
            ],
            "notes": self.notes,
            "unmeasured": self.unmeasured,
        }

    def __str__(self) -> str:
        rows = [[row.what, *_spread(row.median, row.rounds)] for row in self.rows]
        goals = [[g.what, *_spread(g.ratio, g.rounds), g.bound, g.verdict] for g in self.goals]
        lines = [self.title, *_align([["", self.unit, "", "", ""], *rows]), ""]
        lines += _align([["", "ratio", "", "target", ""], *goals])
        lines += [f"  not measured: {what}" for what in self.unmeasured]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def compare(above: Row, below: Row) -> list[float]:
    """Return the ratio of two rows in each round."""
    return [a / b for a, b in zip(above.rounds, below.rounds, strict=True)]


def _spread(middle: float, rounds: Sequence[float]) -> list[str]:
    return [_number(middle), f"({_number(min(rounds))} to {_number(max(rounds))})"]


def _number(value: float) -> str:
    """Format a number with four digits, or in whole thousands. More digits would be noise."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*(_pad(row) for row in rows), strict=True)]
    return ["  " + "  ".join(_cells(_pad(row), widths)).rstrip() for row in rows]


def _pad(row: list[str]) -> list[str]:
    return row + [""] * (5 - len(row))


def _cells(row: list[str], widths: list[int]) -> list[str]:
    """Align the cells of a row. The second column has numbers and is right-aligned."""
    return [
        cell.rjust(width) if i == 1 else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
