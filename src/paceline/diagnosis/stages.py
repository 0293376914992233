"""What a run in stages says of itself: how long its stages wait, and which of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.trace.bubbles import bubbles
from paceline.trace.spans import Kind

if TYPE_CHECKING:
    from paceline.run import Run

__all__ = ["Stages", "stages_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Of ranks that hold different stages of a model."""

    waits: Mapping[int, float]
    """By rank, of those that compute: the share of a step in which it does not."""
    microbatches: int
    """Of a step."""
    splits: bool
    """Whether stages are split among ranks, or shared by them, which then wait for each other as well."""

    @property
    def bubble(self) -> float:
        """The share of a step in which the stages do not compute."""
        return sum(self.waits.values()) / len(self.waits)

    @property
    def longest(self) -> int:
        """The rank that waits the longest."""
        return max(self.waits, key=lambda rank: self.waits[rank])

    @property
    def shortest(self) -> int:
        return min(self.waits, key=lambda rank: self.waits[rank])


def stages_of(run: Run) -> Stages | None:
    """None where no rank holds one stage of several: those of `zero` compute segments too, but each all of them."""
    waits = bubbles(run.trace.spans) if any(words.startswith("stage") for words in run.holds) else {}
    if not waits:
        return None
    forward = [each.of(Kind.FORWARD)["peer"] for each in run.trace.spans]
    return Stages(
        waits=waits,
        microbatches=1 + max((int(each.max()) for each in forward if len(each)), default=0),
        splits=any("," in words for words in run.holds),
    )
