"""The rank with the largest memory, and its content."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.runs.run import Run

_TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak memory of the rank that holds the most."""

    rank: int
    total_bytes: int
    others_bytes: float
    """Median of the other ranks' peaks; its own peak if it is the only rank."""
    shares: Mapping[str, float]
    """Fraction of each kind in the total, largest first."""

    @property
    def factor(self) -> float:
        """Ratio to the other ranks' memory."""
        return self.total_bytes / self.others_bytes if self.others_bytes else 1.0


def largest_bytes(run: Run) -> int | None:
    """Return the largest peak memory of any rank; None if unknown."""
    return max((each.get(_TOTAL, 0) for each in run.memory), default=0) or None


def peak_of(run: Run) -> Peak | None:
    """Return the peak of the rank that holds the most; None if the run has no memory figures."""
    totals = [each.get(_TOTAL, 0) for each in run.memory]
    total_bytes = max(totals, default=0)
    if not total_bytes:
        return None
    rank = totals.index(total_bytes)
    kinds = {kind: nbytes for kind, nbytes in run.memory[rank].items() if kind != _TOTAL and nbytes}
    ordered = sorted(kinds, key=lambda kind: -kinds[kind])
    return Peak(
        rank=rank,
        total_bytes=total_bytes,
        others_bytes=statistics.median([*totals[:rank], *totals[rank + 1 :]] or totals),
        shares={kind: kinds[kind] / total_bytes for kind in ordered},
    )
