"""Which rank holds most, and what of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.run import Run

__all__ = ["Peak", "largest_bytes", "peak_of"]

_TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What the rank that holds most holds at its peak."""

    rank: int
    total_bytes: int
    others_bytes: float
    """The median of the other ranks' peaks; its own where it is alone."""
    shares: Mapping[str, float]
    """The part of each kind in the total, the largest first."""

    @property
    def factor(self) -> float:
        """How many times as much as the others."""
        return self.total_bytes / self.others_bytes if self.others_bytes else 1.0


def largest_bytes(run: Run) -> int | None:
    """What the rank that holds most holds at its peak. None of a run that does not know."""
    return max((each.get(_TOTAL, 0) for each in run.memory), default=0) or None


def peak_of(run: Run) -> Peak | None:
    """None of a run that does not know of its memory."""
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
