"""The model in stages, the batch in micro-batches: while one micro-batch is in the second stage, the next is in the
first.

`order` says which micro-batch a rank takes up next: `gpipe` and `1f1b` take as long, but the second keeps fewer
activations; `interleaved` gives each rank several chunks of the model; `zb-h1` and `zb-h2` put the gradients of the
weights off to when a rank would wait. BatchNorm normalises each micro-batch by itself, and dropout draws for each.

When: A model that is too large for one worker, or a network too slow to sum all gradients over it.
Cost, p equal stages, m micro-batches: (m + p - 1)/m times as long as p workers would take without waiting; less
with chunks, or with parted backward passes. Each cut sends its values and their gradients, once a micro-batch.
Source: Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019, and "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", 2021; Qi et al., "Zero Bubble Pipeline Parallelism", 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import ConfigurationError
from paceline.schedules.pipeline import check_order
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy, names_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline(SegmentedStrategy):
    """Each worker holds a stage of the model, and micro-batches pass through them."""

    stages: int | None = field(
        default=None,
        metadata={
            "help": "how many workers hold a part of the model; left out: all, if it has so many layers"
        },
    )
    microbatches: int | None = field(
        default=None,
        metadata={"help": "parts of a batch that follow each other; left out: four for each stage"},
    )
    order: str = field(
        default="1f1b", metadata={"help": "gpipe, 1f1b, interleaved, zb-h1 or zb-h2: what a worker does next"}
    )
    chunks: int = field(
        default=1,
        metadata={"help": "stages that each worker has, one after the other, with order=interleaved"},
    )
    cuts: str = field(
        default="",
        metadata={"help": "layers to cut before, with + between them; left out: for about equal seconds"},
    )

    def __post_init__(self) -> None:
        one = 1 if self.stages is None else self.stages
        check_order(self.order, one, 1 if self.microbatches is None else self.microbatches, self.chunks)

    def roles(self, workers: int) -> Sequence[str]:
        if self.stages is not None and self.stages > workers:
            remedy = "use as many workers, or fewer stages"
            raise ConfigurationError("stages", f"must be at most the {workers} workers", self.stages, remedy)
        return ("worker",) * (workers if self.stages is None else self.stages)

    def plan(self, workers: int) -> Plan:
        return Plan(
            stages=self.stages,
            chunks=self.chunks,
            microbatches=self.microbatches,
            order=self.order,
            cuts=names_in(self.cuts),
        )
