"""The step of ZeRO stages 2 and 3 without a pipeline, on one rank. The other ranks do the same at the same times.

Between two passes a rank exchanges units as `strategies.shared.sharding` does: during a pass, it reduces the gradient
of the previous one and then gathers the parameters of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from paceline.costs.counted import update_seconds
from paceline.costs.prices import Work
from paceline.model.holding import Holding, Sharding
from paceline.model.stages.units import ShardUnit
from paceline.planner.mesh import MeshStep
from paceline.planner.prediction import Parts
from paceline.strategies.shared.sharding.units import completed_by, used_by

_KINDS: tuple[Literal["parameters"], Literal["gradients"]] = "parameters", "gradients"
_FEW = 5
"""With fewer segments, backward passes do not overlap with exchanges: see `shared_units`."""


class _Pass(NamedTuple):
    segment: int
    is_backward: bool


@dataclass(frozen=True)
class ShardedStep:
    """A step of ranks that share all segments of `step`. Its mesh has one stage."""

    step: MeshStep
    frees_parameters: bool

    @cached_property
    def holding(self) -> Holding:
        sharding = Sharding(self.step.plan.data, 0, self.frees_parameters)
        return self.step.facts.shapes.sharded(self.step.cut, None, sharding).holding

    @cached_property
    def _gather_s(self) -> dict[int, float]:
        """Seconds of an all-gather of each unit."""
        return self._rings_s("parameters")

    @cached_property
    def _reduce_s(self) -> dict[int, float]:
        """Seconds of a reduce-scatter of the gradient of each unit."""
        return self._rings_s("gradients")

    def _rings_s(self, kind: Literal["parameters", "gradients"]) -> dict[int, float]:
        places, holding = self.step.places, self.holding
        members, groups = places.data_members(0), places.data_groups()
        return {
            unit.group.number: places.ring_s(members, holding.unit_bytes(place, kind), 1, groups)
            for place, unit in enumerate(self._units)
        }

    @cached_property
    def _passes(self) -> list[_Pass]:
        numbers = range(len(self.step.cut.segments))
        both = [_Pass(n, False) for n in numbers] + [_Pass(n, True) for n in reversed(numbers)]
        return both * self.step.microbatches

    @cached_property
    def _completed(self) -> list[Sequence[int]]:
        """Units with a gradient that is complete before each pass, and after the last one."""
        by_segment = completed_by([unit.group for unit in self._units])
        done = [by_segment.get(one.segment, []) if one.is_backward else [] for one in self._passes]
        return [[], *done]

    @cached_property
    def _used(self) -> dict[int, list[int]]:
        if not self.frees_parameters:
            return {}
        return used_by([unit.group for unit in self._units])

    def parts(self) -> Parts:
        compute_s = sum(self._pass_s(one) for one in self._passes)
        end_s = self._passes_end_s() + self._reduced_s(self._completed[-1])
        own_bytes = self.holding.own_length * self.holding.layout.dtype.itemsize
        update_s = update_seconds(self.step.device, own_bytes)
        gathers_s = 0.0 if self.frees_parameters else sum(self._gather_s.values())
        communicate_s = end_s - compute_s + gathers_s
        return Parts(compute=compute_s, communicate=communicate_s, wait=0.0, bubble=0.0, update=update_s)

    def _pass_s(self, one: _Pass) -> float:
        work = Work.BACKWARD if one.is_backward else Work.FORWARD
        return self.step.segment_pass(work, self.step.cut.segments[one.segment]).compute_s

    def _reduced_s(self, units: Sequence[int]) -> float:
        return sum(self._reduce_s[unit] for unit in units)

    def _gathered_s(self, units: Sequence[int]) -> float:
        return sum(self._gather_s[unit] for unit in units)

    def _passes_end_s(self) -> float:
        now_s = beside_s = 0.0
        here: set[int] = set()
        for place, one in enumerate(self._passes):
            now_s = max(now_s, beside_s)
            completed, needed = self._completed[place], self._used.get(one.segment, [])
            following = self._following(place)
            here &= {*needed, *following}
            if self._is_tight and one.is_backward:
                now_s += self._reduced_s(completed)
                completed = following = []
            missing = [unit for unit in needed if unit not in here]
            if missing:
                now_s += self._reduced_s(completed) + self._gathered_s(missing)
                completed = []
            following = [unit for unit in following if unit not in here and unit not in missing]
            if completed or following:
                beside_s = now_s + self._reduced_s(completed) + self._gathered_s(following)
            here.update(missing, following)
            now_s += self._pass_s(one)
        return max(now_s, beside_s)

    @property
    def _is_tight(self) -> bool:
        return self.frees_parameters and len(self.step.cut.segments) < _FEW

    def _following(self, place: int) -> list[int]:
        if place + 1 == len(self._passes):
            return []
        return self._used.get(self._passes[place + 1].segment, [])

    # Memory

    def memory_bytes(self) -> int:
        shapes, holding = self.step.facts.shapes, self.holding
        state = holding.optimizer_bytes(shapes.holding.layout, shapes.memory.optimizer_state())
        fixed = holding.parameter_bytes + holding.gradient_bytes + shapes.memory.buffer_bytes
        return round(fixed + state + self._peak_bytes())

    def _peak_bytes(self) -> float:
        """Return the peak of gathered parameters, gradients of units and activations."""
        nbytes, gradients = (
            {unit.group.number: float(self.holding.unit_bytes(n, kind)) for n, unit in enumerate(self._units)}
            for kind in _KINDS
        )
        activations = peak = 0.0
        again = self.step.facts.task.recompute
        for place, one in enumerate(self._passes[: 2 * len(self.step.cut.segments)]):
            stored = self.step.segment_activations[one.segment]
            own, made = (stored.given, stored.made) if again else (stored.kept, 0.0)
            used = self._used.get(one.segment, [])
            gathered = sum(nbytes[unit] for unit in used)
            ahead = sum(nbytes[unit] for unit in self._following(place) if unit not in used)
            completed = sum(gradients[unit] for unit in self._completed[place])
            activations += 0.0 if one.is_backward else own
            if self._is_tight and one.is_backward:  # no exchange beside the pass
                peak = max(peak, activations + completed)
                completed = ahead = 0.0
            first = completed or ahead  # gradients are reduced before parameters are gathered
            peak = max(peak, activations + made + gathered + first)
            if one.is_backward:  # its activations are freed before its gradient is complete
                activations -= own
                gradient = sum(gradients[unit] for unit in self._touched(one))
                peak = max(peak, activations + gradient + gathered + max(completed, ahead))
        return peak

    @property
    def _units(self) -> Sequence[ShardUnit]:
        return self.holding.units

    def _touched(self, one: _Pass) -> list[int]:
        return [unit.group.number for unit in self._units if one.segment in unit.group.users]
