"""Pipeline parallelism: the model is split into stages and the batch into micro-batches. The stages compute
different micro-batches at the same time.

`order` selects the next pass of each rank. `gpipe` and `1f1b` take equally long, but `1f1b` stores fewer activations.
`interleaved` gives each rank several chunks of the model. `zb-h1` and `zb-h2` delay the gradients of the weights
until a rank would otherwise wait. BatchNorm normalises each micro-batch separately, and dropout draws a mask for
each. `pipedream` and `pipedream-2bw` do not drain the pipeline between batches: no worker waits, but gradients are
stale, so the weights differ from `single`.

When: A model is too large for one worker, or the network is too slow to sum all gradients.
Cost, p equal stages, m micro-batches: (m + p - 1)/m of the time that p workers need without waiting. Chunks and split
backward passes reduce it; `pipedream` and `pipedream-2bw` need that time only. Each cut sends its activations and their
gradients once per micro-batch.
Source: Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019, "Memory-Efficient Pipeline-Parallel DNN
Training", 2021, and "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021; Qi et al.,
"Zero Bubble Pipeline Parallelism", 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import ConfigurationError
from paceline.schedules.pipeline import CONTINUOUS, check_order
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy, names_in
from paceline.strategies.shared.search_space import ALL_ORDERS, Tried, microbatch_counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline(SegmentedStrategy):
    """Each worker holds one stage of the model; micro-batches pass through the stages."""

    stages: int | None = field(
        default=None,
        metadata={
            "help": "number of stages, one per worker; default: all workers, or fewer if the model has fewer layers"
        },
    )
    microbatches: int | None = field(
        default=None,
        metadata={
            "help": "number of micro-batches of a batch; default: four per stage, or 1 with order=pipedream",
            "tries": Tried(microbatch_counts),
        },
    )
    order: str = field(
        default="1f1b",
        metadata={
            "help": "order of the passes: gpipe, 1f1b, interleaved, zb-h1 or zb-h2; without a flush: pipedream or "
            "pipedream-2bw",
            "tries": ALL_ORDERS,
        },
    )
    chunks: int = field(
        default=1,
        metadata={"help": "number of chunks of the model per worker, with order=interleaved"},
    )
    cuts: str = field(
        default="",
        metadata={
            "help": "names of the layers that begin a stage, joined by +; default: balance compute time"
        },
    )

    def __post_init__(self) -> None:
        stages = 1 if self.stages is None else self.stages
        microbatches = 4 * stages if self._microbatches is None else self._microbatches
        check_order(self.order, stages, microbatches, self.chunks)

    @property
    def _microbatches(self) -> int | None:
        order = CONTINUOUS.get(self.order)
        is_whole = order is not None and order.whole_batches
        return 1 if is_whole and self.microbatches is None else self.microbatches

    def roles(self, workers: int) -> Sequence[str]:
        if self.stages is not None and self.stages > workers:
            remedy = "use as many workers, or fewer stages"
            raise ConfigurationError("stages", f"must be at most the {workers} workers", self.stages, remedy)
        return ("worker",) * (workers if self.stages is None else self.stages)

    def plan(self, workers: int) -> Plan:
        return Plan(
            stages=self.stages,
            chunks=self.chunks,
            microbatches=self._microbatches,
            order=self.order,
            cuts=names_in(self.cuts),
        )
