"""The model by its layers: each rank holds some of them, and one rank works at a time.

A batch goes forward from rank to rank, and its gradient comes back the same way. Ranks hold less than the whole model,
but wait for each other: it is the textbook's picture of model parallelism, and the yardstick of the pipelines.

When: A model that is too large for one worker, to see what a pipeline gains.
Cost, p equal stages: as long as one worker takes, and 2 (p - 1) messages of the values that cross the cuts; a rank is
idle for (p - 1)/p of the time.
Source: Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy, names_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers(SegmentedStrategy):
    """Each worker holds some layers of the model, and one works at a time."""

    cuts: str = field(
        default="",
        metadata={"help": "layers to cut before, with + between them; left out: for about equal seconds"},
    )

    def plan(self, workers: int) -> Plan:
        cuts = names_in(self.cuts)
        stages = len(cuts) + 1 if cuts else None
        return Plan(stages=stages, microbatches=1, order="gpipe", cuts=cuts)
