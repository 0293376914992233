"""Memory of the ranks of a mesh."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.planner.mesh import MeshStep
from paceline.schedules.pipeline import ORDERS
from paceline.schedules.pipeline.timing import ActivationBytes, peak_activations


@dataclass(frozen=True)
class MeshMemory:
    """Bytes that the ranks of a row need at the peak. Other rows need the same."""

    step: MeshStep

    def largest_bytes(self) -> int:
        """Return the bytes of the rank that needs the most."""
        return max(self._rank_bytes(rank) for rank in range(self.step.places.stages))

    def _rank_bytes(self, rank: int) -> int:
        step = self.step
        shapes, holding = step.facts.shapes, step.holding(rank)
        shards = holding.split(step.plan.data, elementwise=True) if step.plan.zero == 1 else None
        optimizer = holding.optimizer_bytes(
            shapes.holding.layout, shapes.memory.optimizer_state(), shards[0] if shards else None
        )
        units = max((holding.unit_bytes(place) for place in range(len(holding.units))), default=0)
        units *= step.plan.zero == 3  # one unit is gathered at a time
        fixed = holding.parameter_bytes + holding.gradient_bytes + optimizer + units
        return round(fixed + self._activation_bytes(rank))

    def _activation_bytes(self, rank: int) -> float:
        step, plan = self.step, self.step.plan
        ranks = step.places.stages
        micro = min(step.microbatches, 4 * ranks)  # more do not change the peak, except in GPipe
        micro = step.microbatches if plan.order == "gpipe" else micro
        actions = ORDERS[plan.order](rank, ranks, micro, plan.chunks)
        stages = range(rank, len(step.stages), ranks)
        return peak_activations(actions, [self._stage_bytes(stage) for stage in stages])

    def _stage_bytes(self, stage: int) -> ActivationBytes:
        step = self.step
        segments = [step.segment_activations[segment.number] for segment in step.stages[stage]]
        if not step.facts.task.recompute:
            return ActivationBytes(sum(each.kept for each in segments))
        made = [each.made for each in segments]
        return ActivationBytes(sum(each.given for each in segments), sum(made), max(made))
