"""Generations of a run: ranges of steps. At the end of each one, every rank's program ends and starts again.

Between two generations no messages are in flight. The only state is what the cluster stores for each rank. So
checkpoints are written there, and a run resumes from there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

NEVER = sys.maxsize
"""Value of a generation end that stands for the end of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPlan:
    """Start and end of each generation of a run."""

    first: int = 0
    """First step of the run."""
    every: int | None = None
    """Steps between the ends of generations: each end is a multiple of it. None if no end is known in advance."""
    may_end_early: bool = False
    """Whether the reporter may end a generation early."""

    meet_every: int = 0
    """Steps between meetings of workers that run independently. There the reporter can end a generation. 0 if
    never."""

    multiple: int = 1
    """Every generation end that the reporter sets is rounded up to a multiple of this."""

    @property
    def are_many(self) -> bool:
        """Whether the run may have more than one generation."""
        return self.may_end_early or self.every is not None

    def end_of(self, first: int) -> int:
        """Return the last step at which a generation that begins with step `first` may end."""
        return NEVER if self.every is None else (first // self.every + 1) * self.every

    def rounded(self, end: int) -> int:
        """Return the first possible generation end at or after `end`."""
        return -(-end // self.multiple) * self.multiple
