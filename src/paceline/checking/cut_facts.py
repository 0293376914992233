"""Statistics of a cut model: parameters, operations and measured seconds of each stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from paceline.context import Batch, BoundaryValues
from paceline.costs.units import format_bytes, format_seconds
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.cutting.layers import Layers, few_samples
from paceline.model.replica import Replica
from paceline.task.task import Task

_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """Statistics of one stage. Bytes are for a whole batch."""

    number: int
    first: str
    last: str
    parameters: int
    share: float
    """Share of the operations of the whole model, counted."""
    seconds: float
    """Forward and backward of a whole batch, measured here."""
    bytes_out: int
    """Bytes sent across the cut after this stage."""

    @property
    def layers(self) -> str:
        return self.first if self.first == self.last else f"{self.first} … {self.last}"

    def cells(self) -> list[str]:
        sent = format_bytes(self.bytes_out) if self.bytes_out else ""
        return [
            str(self.number),
            self.layers,
            f"{self.parameters:,}",
            f"{self.share:.1%}",
            format_seconds(self.seconds),
            sent,
        ]


@dataclass(frozen=True, slots=True)
class Facts:
    """Statistics of all stages of a model."""

    stages: Sequence[StageFacts]
    samples: int
    """Samples in a batch."""
    most: int
    """Largest number of stages into which the model can be cut."""

    @property
    def slowest(self) -> StageFacts:
        return max(self.stages, key=lambda stage: stage.seconds)

    @property
    def evenness(self) -> float:
        """Mean time of a stage / time of the slowest: 1 if all are equal."""
        return sum(stage.seconds for stage in self.stages) / len(self.stages) / self.slowest.seconds

    def words(self) -> str:
        slowest = self.slowest
        return (
            f"Times are for a batch of {self.samples}, forward and backward, measured here. "
            f"Stage {slowest.number} is the slowest and limits the others: without a bubble, "
            f"the stages are busy for {self.evenness:.0%} of the time. "
            f"This model can be cut into up to {self.most} stages; --cuts and the strategies' cuts= set the cuts."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "stages": [asdict(stage) for stage in self.stages],
            "samples": self.samples,
            "most": self.most,
        }


@dataclass(frozen=True, slots=True)
class SplitLayers:
    """Layers that `tensor` splits, and layers that every rank of the tensor group computes whole."""

    size: int
    split: tuple[str, ...]
    whole: tuple[str, ...]

    def words(self) -> str:
        whole = (
            f"Every rank computes whole: {', '.join(self.whole)}."
            if self.whole
            else "No layer is computed whole."
        )
        return f"tensor:size={self.size} splits {', '.join(self.split)}. {whole}"


def split_layers_of(task: Task, size: int) -> SplitLayers:
    """Return which layers of a task's model are split among `size` ranks. Layers without matrices are left out."""
    samples = Samples.of(task)
    batch = GlobalBatches.of(task, samples, 0).slice(0, 0, 1)
    model: Any = Layers.of(task, task.build_model(0), few_samples(samples, batch), tensor=size).model
    split = dict.fromkeys(name.rpartition(".")[0] or name for name in model.shares.of)
    return SplitLayers(size, tuple(split), model.replicated)


def facts_of(task: Task, stages: int, cuts: Sequence[str] = ()) -> Facts:
    """Cut a task's model, and measure each stage with the first batch."""
    module = task.build_model(0)
    samples = Samples.of(task)
    batch = GlobalBatches.of(task, samples, 0).slice(0, 0, 1)
    layers = Layers.of(task, module, few_samples(samples, batch))
    cut = layers.cut(stages, cuts)
    part = Replica.of(task, module).part(cut, range(stages))
    seconds = [0.0] * stages
    taken = [_measure(part, stages, batch, samples) for _ in range(_REPEATS)]
    for number in range(stages):
        seconds[number] = sorted(each[number] for each in taken)[_REPEATS // 2]
    found = [
        StageFacts(
            number=segment.number,
            first=segment.first,
            last=segment.last,
            parameters=segment.parameter_count,
            share=segment.share,
            seconds=seconds[segment.number],
            bytes_out=segment.bytes_out * batch.count,
        )
        for segment in cut.segments
    ]
    return Facts(found, batch.count, layers.most)


def _measure(part: Replica, stages: int, batch: Batch, samples: Samples) -> list[float]:
    """Return the seconds of each stage for one batch, forward and backward."""
    seconds, given = [0.0] * stages, BoundaryValues()
    part.begin_batch()
    for number in range(stages):
        start_s = time.perf_counter()
        made = part.forward(number, batch, 0, samples, given)
        seconds[number] += time.perf_counter() - start_s
        given = made if isinstance(made, BoundaryValues) else BoundaryValues()
    gradients: Sequence[Tensor] = ()
    for number in reversed(range(stages)):
        start_s = time.perf_counter()
        gradients = part.backward(number, 0, gradients)
        seconds[number] += time.perf_counter() - start_s
    return seconds
