"""The legs of a run: stretches of steps at whose ends every rank's program ends, and begins again.

Between two legs nothing is under way and nothing is remembered but what the world keeps for a rank. So that is where a
run is written to disk, and where it goes on from.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

__all__ = ["NEVER", "Legs"]

NEVER = sys.maxsize
"""As the end of a leg: it ends with the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Legs:
    """Where the legs of a run begin and end."""

    first: int = 0
    """The step that the run begins with."""
    every: int | None = None
    """A leg ends at each multiple of this number of steps. None: at no step that is known beforehand."""
    said: bool = False
    """Whether the reporter may say, in the middle of a leg, that it ends."""

    meet_every: int = 0
    """Where workers take steps of their own, they meet every so many: there the reporter can say it. 0: never."""

    multiple: int = 1
    """A leg ends at multiples of this alone, wherever it is said to end."""

    @property
    def are_many(self) -> bool:
        """Whether the run may have more than one."""
        return self.said or self.every is not None

    def end_of(self, first: int) -> int:
        """Where a leg that begins with a step ends at the latest."""
        return NEVER if self.every is None else (first // self.every + 1) * self.every

    def rounded(self, end: int) -> int:
        """Where a leg can end that is to end at a step."""
        return -(-end // self.multiple) * self.multiple
