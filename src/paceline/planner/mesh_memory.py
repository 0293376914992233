"""Memory of the ranks of a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from paceline.model.holding import Holding
from paceline.planner.mesh import MeshStep
from paceline.schedules.pipeline import CONTINUOUS
from paceline.schedules.pipeline.timing import ActivationBytes, order_of, peak_activations


@dataclass(frozen=True)
class MeshMemory:
    """Bytes that the ranks of a row need at the peak. Other rows need the same."""

    step: MeshStep

    @cached_property
    def _known(self) -> dict[int, int]:
        """Static bytes by the holding of a rank. The step stores its holdings."""
        return {}

    def largest_bytes(self) -> int:
        """Return the bytes of the rank that needs the most."""
        return max(self._rank_bytes(rank) for rank in range(self.step.places.stages))

    def _rank_bytes(self, rank: int) -> int:
        holding = self.step.like(rank)
        return round(self._static_bytes(holding) + self._stashed_bytes(rank) + self._activation_bytes(rank))

    def _stashed_bytes(self, rank: int) -> int:
        """Return the bytes of the versions of the parameters that an order without a flush stores."""
        order = CONTINUOUS.get(self.step.plan.order)
        if order is None:
            return 0
        layout = self.step.like(rank).layout
        versions = order.versions(rank, self.step.places.stages) - 1
        return versions * layout.length * layout.dtype.itemsize

    def _static_bytes(self, holding: Holding) -> int:
        """Return the bytes of parameters, gradients and optimizer state."""
        found = self._known.get(id(holding))
        if found is None:
            found = self._known[id(holding)] = self._count_static_bytes(holding)
        return found

    def _count_static_bytes(self, holding: Holding) -> int:
        step, shapes = self.step, self.step.facts.shapes
        shards = holding.split(step.plan.data, elementwise=True) if step.plan.zero == 1 else None
        optimizer = holding.optimizer_bytes(
            shapes.holding.layout, shapes.memory.optimizer_state(), shards[0] if shards else None
        )
        units = max((holding.unit_bytes(place) for place in range(len(holding.units))), default=0)
        units *= step.plan.zero == 3  # one unit is gathered at a time
        return holding.parameter_bytes + holding.gradient_bytes + optimizer + units

    def _activation_bytes(self, rank: int) -> float:
        step, plan = self.step, self.step.plan
        ranks = step.places.stages
        order, micro = plan.order, min(step.microbatches, 4 * ranks)  # more do not change the peak …
        if order == "gpipe":  # … except here
            micro = step.microbatches
        elif order in CONTINUOUS:
            order, micro = "1f1b", 4 * ranks  # of several batches
        actions = order_of(order, ranks, micro, plan.chunks)[rank]
        stages = range(rank, len(step.stages), ranks)
        return peak_activations(actions, [self._stages[stage] for stage in stages])

    @cached_property
    def _stages(self) -> list[ActivationBytes]:
        return [self._stage_bytes(stage) for stage in range(len(self.step.stages))]

    def _stage_bytes(self, stage: int) -> ActivationBytes:
        step = self.step
        segments = [step.segment_activations[segment.number] for segment in step.stages[stage]]
        if not step.facts.task.recompute:
            return ActivationBytes(sum(each.kept for each in segments))
        made = [each.made for each in segments]
        return ActivationBytes(sum(each.given for each in segments), sum(made), max(made))
