"""Each matrix in parts: a worker has some columns of one layer and the rows of the next that belong to them.

So two layers need one sum, of what the second gives; backward needs one, of the gradient of what the first was given.
Attention is split by its heads. All workers of a group see the same samples. What is split is found by itself: linear
layers that lead to linear layers, and nn.TransformerEncoderLayer; or `Task(tensor_plan={"blocks.*.up": "column",
"blocks.*.down": "row"})` says it. With more workers than `size`, neighbours make up a group, and the groups take each
its part of the batch, as in all-reduce. With `sequence=true` norms, dropout and sums between split layers are parted by
the sequence: activations take less memory, and messages are as many bytes.

When: Layers too large for one worker, or batches too small to be parted, between workers with a quick link.
Cost, p workers, l pairs of layers, n values between them: each worker has 1/p of the matrices and their work; 4 l
sums of n values a step, which nothing can hide.
Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019;
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import ConfigurationError
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor(SegmentedStrategy):
    """Each worker holds a part of every matrix, and they sum what these give."""

    size: int | None = field(
        default=None,
        metadata={"help": "how many workers each matrix is split among; left out: all"},
    )
    sequence: bool = field(
        default=False,
        metadata={"help": "whether norms and dropout between split layers are parted, too: by the sequence"},
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
