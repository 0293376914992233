"""Tensor parallelism: each worker holds some columns of one weight matrix and the matching rows of the next.

Each pair of such layers needs one all-reduce of its outputs in the forward pass, and one of the gradients of its
inputs in the backward pass. Attention is split by heads. All workers of a group compute the same samples. The split
is found
automatically: linear layers followed by linear layers, and nn.TransformerEncoderLayer.
`Task(tensor_plan={"blocks.*.up": "column", "blocks.*.down": "row"})` sets it instead. If there are more workers than
`size`, neighbouring ranks form groups, and each group computes a part of the batch, as in all-reduce. `sequence=true`
also splits norms, dropout and residual sums between split layers, along the sequence: activations take less memory for
the same number of bytes sent.

When: Layers are too large for one worker, or batches too small to divide, and the link is fast.
Cost, p workers, l pairs of layers, n values between them: each worker has 1/p of the matrices and of their operations.
A step has 4 l all-reduces of n values, which cannot be overlapped with computation.
Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019;
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import ConfigurationError
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy
from paceline.strategies.shared.search_space import Tried, tensor_sizes, tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor(SegmentedStrategy):
    """Each worker holds a part of every weight matrix; the workers sum the partial outputs."""

    size: int | None = field(
        default=None,
        metadata={
            "help": "number of workers that each matrix is split among; default: all",
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

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ConfigurationError("size", "must be at least 1", self.size, "leave it out: all workers")

    def roles(self, workers: int) -> Sequence[str]:
        if self.size is not None and workers % self.size:
            divisors = ", ".join(str(n) for n in range(1, workers + 1) if workers % n == 0)
            bound = f"must divide the {workers} workers"
            raise ConfigurationError("size", bound, self.size, f"use one of {divisors}")
        return ("worker",) * workers

    def plan(self, workers: int) -> Plan:
        size = self.size or workers
        return Plan(
            stages=1,
            data=workers // size,
            tensor=size,
            sequence=self.sequence,
            microbatches=1,
            order="gpipe",
        )
