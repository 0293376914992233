"""Idle times of the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.trace.bubbles import bubbles
from paceline.trace.spans import Kind

if TYPE_CHECKING:
    from paceline.runs.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Ranks that hold different stages of a model."""

    waits: Mapping[int, float]
    """Fraction of a step in which a rank does not compute, by rank, for ranks that compute."""
    microbatches: int
    """Number of micro-batches in a step."""
    splits: bool
    """Whether stages are split or shared among ranks. These then also wait for each other."""

    @property
    def bubble(self) -> float:
        """Fraction of a step in which the stages do not compute."""
        return sum(self.waits.values()) / len(self.waits)

    @property
    def longest(self) -> int:
        """The rank that waits the longest."""
        return max(self.waits, key=lambda rank: self.waits[rank])

    @property
    def shortest(self) -> int:
        return min(self.waits, key=lambda rank: self.waits[rank])


def stages_of(run: Run) -> Stages | None:
    """Return the stages; None if no rank holds one stage of several. In `zero` each rank computes all segments."""
    waits = bubbles(run.trace.spans) if any(words.startswith("stage") for words in run.holds) else {}
    if not waits:
        return None
    forward = [each.of(Kind.FORWARD)["peer"] for each in run.trace.spans]
    return Stages(
        waits=waits,
        microbatches=1 + max((int(each.max()) for each in forward if len(each)), default=0),
        splits=any("," in words for words in run.holds),
    )
