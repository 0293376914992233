"""A mesh of workers, data x pipeline x tensor: each data-parallel row holds the whole model and computes its part of
the batch. The rows sum their gradients.

A row is a pipeline. Each of its stages is split among a tensor group. Neighbouring ranks form a tensor group,
neighbouring groups a pipeline. Tensor sums therefore stay within a host, if a host has as many ranks as a
tensor group. Gradients cross hosts. `zero` shards the state that the rows would otherwise replicate: 1 the
optimizer state, 2 also the gradients, 3 also the parameters.

When: A model is too large for one worker, and there are more workers than useful stages.
Cost, d rows, p stages, t workers per stage, m micro-batches: a pipeline on 1/d of the batch with its tensor groups,
plus 2 n/(p t) (d - 1)/d bytes sent by each worker for gradients of n bytes.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021;
Rajbhandari et al., "ZeRO", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.collectives import ALGORITHMS
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.pipeline import CONTINUOUS, check_order
from paceline.schedules.pipeline import ORDERS as SYNCHRONOUS
from paceline.strategies.shared.codec import codec_field, keeps_residuals, set_codec
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy, names_in
from paceline.strategies.shared.search_space import (
    ORDERS,
    Tried,
    microbatch_counts,
    smallest_microbatches,
    stage_counts,
    tensor_sizes,
    tried,
)

_LEVELS = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hybrid(SegmentedStrategy):
    """A mesh of data-parallel rows; each row is a pipeline of tensor groups."""

    data: int | None = field(
        default=None,
        metadata={"help": "number of data-parallel rows; default: workers / (pipeline x tensor)"},
    )
    pipeline: int = field(
        default=1,
        metadata={"help": "number of pipeline stages in a row", "tries": Tried(stage_counts, stage_counts)},
    )
    tensor: int = field(
        default=1,
        metadata={
            "help": "number of workers that the matrices of a stage are split among",
            "tries": Tried(tensor_sizes, tensor_sizes),
        },
    )
    sequence: bool = field(
        default=False,
        metadata={
            "help": "also split norms and dropout between split layers, along the sequence",
            "tries": tried(False, True),
        },
    )
    zero: int = field(
        default=0,
        metadata={
            "help": "state that is sharded among rows: 0 none, 1 optimizer state, 2 also gradients, 3 also parameters",
            "tries": tried(*_LEVELS),
        },
    )
    microbatches: int | None = field(
        default=None,
        metadata={
            "help": "number of micro-batches of a row's batch; default: four per stage",
            "tries": Tried(microbatch_counts, smallest_microbatches),
        },
    )
    order: str = field(
        default="1f1b",
        metadata={"help": "order of the passes: gpipe, 1f1b, interleaved, zb-h1 or zb-h2", "tries": ORDERS},
    )
    chunks: int = field(
        default=1, metadata={"help": "number of chunks of the model per worker, with order=interleaved"}
    )
    cuts: str = field(
        default="",
        metadata={
            "help": "names of the layers that begin a stage, joined by +; default: balance compute time"
        },
    )
    algorithm: str = field(
        default="auto", metadata={"help": f"how rows sum gradients: {', '.join(ALGORITHMS)}"}
    )
    codec: str = codec_field("gradients between rows")

    def __post_init__(self) -> None:
        check_order(
            self.order, self.pipeline, 1 if self.microbatches is None else self.microbatches, self.chunks
        )
        if self.order in CONTINUOUS:
            bound = f"must be one of {', '.join(SYNCHRONOUS)}: rows cannot sum gradients without waiting"
            raise ConfigurationError("order", bound, self.order, f"use pipeline:order={self.order}")
        if self.data is not None and self.data < 1:
            raise ConfigurationError("data", "must be at least 1", self.data, "leave it out")
        if self.tensor < 1:
            raise ConfigurationError("tensor", "must be at least 1", self.tensor, "leave it out")
        if self.zero not in _LEVELS:
            raise ConfigurationError("zero", "must be 0, 1, 2 or 3", self.zero, "0 shards nothing")
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        set_codec(self, self.algorithm)
        if self.codec != "none" and (self.zero or self.tensor > 1):
            bound = (
                "must be none with zero or tensor: ranks of one stage would round what they share differently"
            )
            raise ConfigurationError("codec", bound, self.codec, "use zero=0,tensor=1")

    @property
    def replicates(self) -> Sequence[str]:
        return () if keeps_residuals(self.codec) else ("worker",)

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
            codec=self.codec,
        )
