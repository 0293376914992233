"""Ranking of the strategies in a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.comparison.table import Row


def order(table: Sequence[Row]) -> list[Row]:
    """Return the rows that can win, best first: by time to the target, or by samples per second without a target."""
    if any(row.target is not None for row in table):
        reached = [row for row in table if row.seconds_to_target is not None]
        return sorted(reached, key=lambda row: row.seconds_to_target or 0.0)
    return sorted((row for row in table if row.samples_per_s), key=lambda row: -(row.samples_per_s or 0.0))


def within_spread(first: Row, second: Row) -> bool:
    """Return whether the repeats of two rows overlap, so that their order may be random."""
    if first.spread is None or second.spread is None:
        return False
    return second.spread[0] <= first.spread[1]
