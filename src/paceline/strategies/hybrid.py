"""A mesh of workers, data x pipeline x tensor: each row holds the model once and computes its part of the batch, and
the rows sum their gradients.

A row is a pipeline whose every stage is split among a tensor group. Workers that are neighbours in rank are a tensor
group, then a pipeline: so the sums of tensors stay within a host where hosts have as many ranks, and gradients go
across. `zero` shards what the rows would each have: 1 what the optimizer remembers, 2 the gradients too, 3 the
parameters too.

When: A model that is too large for one worker, and more workers than it has good stages.
Cost, d rows of p stages of t workers, m micro-batches: that of a pipeline with 1/d of the batch and of tensor groups
in it, and 2 n/(p t) (d - 1)/d bytes sent by each worker for gradients of n bytes.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021;
Rajbhandari et al., "ZeRO", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.collectives import ALGORITHMS
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.pipeline import check_order
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy, names_in

_LEVELS = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hybrid(SegmentedStrategy):
    """A mesh: each row holds the model, in stages and columns; rows share the batch."""

    data: int | None = field(
        default=None,
        metadata={"help": "rows, each with its part of the batch; left out: what the others leave"},
    )
    pipeline: int = field(default=1, metadata={"help": "stages of each row's pipeline"})
    tensor: int = field(default=1, metadata={"help": "workers that each stage's matrices are split among"})
    sequence: bool = field(
        default=False,
        metadata={"help": "whether these workers part norms and dropout, too: by the sequence"},
    )
    zero: int = field(
        default=0,
        metadata={"help": "what rows share: 0 nothing, 1 optimizer state, 2 gradients, 3 parameters too"},
    )
    microbatches: int | None = field(
        default=None,
        metadata={"help": "parts of a row's batch that follow each other; left out: four for each stage"},
    )
    order: str = field(
        default="1f1b", metadata={"help": "gpipe, 1f1b, interleaved, zb-h1 or zb-h2: what a worker does next"}
    )
    chunks: int = field(default=1, metadata={"help": "stages that each worker has, with order=interleaved"})
    cuts: str = field(
        default="",
        metadata={"help": "layers to cut before, with + between them; left out: for about equal seconds"},
    )
    algorithm: str = field(
        default="auto", metadata={"help": f"how rows sum gradients: {', '.join(ALGORITHMS)}"}
    )

    def __post_init__(self) -> None:
        check_order(
            self.order, self.pipeline, 1 if self.microbatches is None else self.microbatches, self.chunks
        )
        if self.data is not None and self.data < 1:
            raise ConfigurationError("data", "must be at least 1", self.data, "leave it out")
        if self.tensor < 1:
            raise ConfigurationError("tensor", "must be at least 1", self.tensor, "leave it out")
        if self.zero not in _LEVELS:
            raise ConfigurationError("zero", "must be 0, 1, 2 or 3", self.zero, "0 shards nothing")
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)

    def roles(self, workers: int) -> Sequence[str]:
        row = self.pipeline * self.tensor
        rows = workers // row if self.data is None else self.data
        if rows * row != workers or not rows:
            words = f"{'any' if self.data is None else rows} x {self.pipeline} x {self.tensor}"
            remedy = "use as many workers as data x pipeline x tensor"
            raise ConfigurationError("the mesh", f"must be of the {workers} workers", words, remedy)
        return ("worker",) * workers

    def plan(self, workers: int) -> Plan:
        return Plan(
            stages=self.pipeline,
            data=workers // (self.pipeline * self.tensor),
            tensor=self.tensor,
            sequence=self.sequence,
            chunks=self.chunks,
            microbatches=self.microbatches,
            order=self.order,
            cuts=names_in(self.cuts),
            zero=self.zero,
            algorithm=self.algorithm,
        )
