"""Model parallelism by layers: each rank holds consecutive layers, and one rank computes at a time.

The activations pass forward from rank to rank, and their gradients pass back in reverse order. Each rank stores
only its own layers, but the others are idle while it computes. This is the textbook's basic model parallelism, and
the reference for pipelines.

When: A model is too large for one worker, or as the reference that shows what a pipeline gains.
Cost, p equal stages: the compute time of one worker, plus 2 (p - 1) messages: at each cut the activations, and
their gradients. A rank is idle for (p - 1)/p of the time.
Source: Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy, names_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers(SegmentedStrategy):
    """Each worker holds consecutive layers; one worker computes at a time."""

    cuts: str = field(
        default="",
        metadata={
            "help": "names of the layers that begin a stage, joined by +; default: balance compute time"
        },
    )

    def plan(self, workers: int) -> Plan:
        cuts = names_in(self.cuts)
        stages = len(cuts) + 1 if cuts else None
        return Plan(stages=stages, microbatches=1, order="gpipe", cuts=cuts)
