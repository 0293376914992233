"""The step of a mesh: one row and one rank of each tensor group are computed, because the others do the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from paceline.clusters.simulated.stage_plan import rings_of
from paceline.context import GroupReduction, Segment
from paceline.costs.counted import Operations, update_seconds, work_seconds
from paceline.costs.devices import Device
from paceline.costs.prices import Work
from paceline.model.cutting.cut import Cut
from paceline.model.holding import Holding, Sharding
from paceline.planner.facts import StoredParts, TaskFacts
from paceline.planner.places import Places
from paceline.planner.prediction import Parts
from paceline.schedules.pipeline import CONTINUOUS
from paceline.schedules.pipeline.timing import StageCosts, continuous_step_s, steady_ends_s
from paceline.strategies.shared.pipelining.program import FINER, Plan


class PassCost(NamedTuple):
    """Seconds of one pass of a micro-batch through a stage."""

    compute_s: float = 0.0
    communicate_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.communicate_s


class SegmentBytes(NamedTuple):
    """Activation bytes of a segment: see `facts.Stored`."""

    kept: float
    given: float
    made: float


@dataclass(frozen=True)
class MeshStep:
    """One step of a plan. `places` has the number of stages that the model is cut into."""

    facts: TaskFacts
    plan: Plan
    places: Places
    device: Device
    cut: Cut
    stored: StoredParts

    samples: int
    """Samples of a micro-batch."""

    @property
    def microbatches(self) -> int:
        return microbatches_of(self.plan, self.places, row_samples(self.facts, self.plan))

    @cached_property
    def stages(self) -> list[list[Segment]]:
        stages: list[list[Segment]] = [[] for _ in range(self.cut.segments[-1].stage + 1)]
        for segment in self.cut.segments:
            stages[segment.stage].append(segment)
        return stages

    # Time

    @cached_property
    def _known(self) -> dict[object, PassCost]:
        return {}

    def _pass(self, work: Work, stage: int) -> PassCost:
        """Return the cost of a pass through a stage."""
        compute_s = communicate_s = 0.0
        for segment in self.stages[stage]:
            costs = segment.flops, segment.moved_bytes, segment.launches, segment.weight_bytes
            exchange_s = self._exchange_s(work, segment)
            key = (
                work,
                *costs,
                segment.values_out,
                segment.reductions,
                segment.gradient_reductions,
                exchange_s,
            )
            found = self._known.get(key)
            if found is None:
                found = self.segment_pass(work, segment)
                found = self._known[key] = found._replace(communicate_s=found.communicate_s + exchange_s)
            compute_s, communicate_s = compute_s + found.compute_s, communicate_s + found.communicate_s
        return PassCost(compute_s, communicate_s)

    def segment_pass(self, work: Work, segment: Segment) -> PassCost:
        gradient_bytes = segment.weight_bytes * self.facts.shapes.holding.gradient_ratio
        costs = segment.flops, segment.moved_bytes, segment.launches, segment.weight_bytes
        forward = Operations(*costs, gradient_bytes).times(self.samples)
        again = self.facts.task.recompute and work in (Work.BACKWARD, Work.INPUTS)
        compute_s = work_seconds(self.device, work, forward, recomputes=again)
        return PassCost(compute_s, self._rings_s(work, segment))

    @cached_property
    def _units_s(self) -> tuple[list[float], list[float]]:
        """Seconds in which rows gather the parameters of each segment, and reduce the gradients that it completes."""
        gather_s, scatter_s = [0.0] * len(self.cut.segments), [0.0] * len(self.cut.segments)
        places, groups = self.places, self.places.data_groups()
        for rank in range(places.stages if self.plan.zero > 1 else 0):
            members, holding = places.data_members(rank), self.holding(rank)
            for unit in holding.units:
                nbytes = unit.length * holding.layout.dtype.itemsize
                seconds = places.ring_s(members, nbytes, 1, groups)
                scatter_s[unit.group.users[0]] += places.ring_s(
                    members, nbytes * holding.gradient_ratio, 1, groups
                )
                for segment in unit.group.users if self.plan.zero == 3 else ():
                    gather_s[segment] += seconds
        return gather_s, scatter_s

    def _exchange_s(self, work: Work, segment: Segment) -> float:
        """Return the seconds of the exchanges of ZeRO stages 2 and 3 in a pass. Nothing overlaps with them."""
        gather_s, scatter_s = (each[segment.number] for each in self._units_s)
        return gather_s + (scatter_s if work in (Work.BACKWARD, Work.WEIGHTS) else 0.0)

    def _rings_s(self, work: Work, segment: Segment) -> float:
        if self.places.tensor == 1 or work is Work.WEIGHTS:
            return 0.0
        if work is Work.FORWARD:
            return self._reduced_s(segment.values_out, segment.reductions)
        if not segment.gradient_reductions:
            return 0.0
        before = self.cut.segments[segment.number - 1]
        _, lengths = rings_of(before.values_out, before.reductions, self.places.tensor)
        return self._reduced_s(lengths, segment.gradient_reductions)

    def _reduced_s(self, values: Sequence[int], reductions: Sequence[GroupReduction]) -> float:
        """Return the seconds in which a tensor group combines values with these bytes per sample."""
        rings, _ = rings_of(values, reductions, self.places.tensor)
        members = self.places.tensor_members(0)
        seconds = 0.0
        for ring in rings:
            passes = ring.rounds // (self.places.tensor - 1)
            nbytes = sum(sum(lengths) for lengths in ring.sent_bytes) / ring.rounds
            seconds += self.places.ring_s(members, nbytes * self.samples, passes)
        return seconds

    @cached_property
    def _passes(self) -> dict[Work, list[PassCost]]:
        works = (Work.FORWARD, Work.BACKWARD, Work.INPUTS, Work.WEIGHTS)
        return {work: [self._pass(work, stage) for stage in range(len(self.stages))] for work in works}

    def parts(self) -> Parts:
        """Return the parts of the seconds of a step."""
        ranks, chunks = self.places.stages, self.plan.chunks
        seconds = {work: [each.total_s for each in costs] for work, costs in self._passes.items()}
        costs = StageCosts(
            seconds[Work.FORWARD],
            seconds[Work.BACKWARD],
            seconds[Work.INPUTS],
            seconds[Work.WEIGHTS],
            [self._onward(stage) for stage in range(len(self.stages))],
        )
        sums_s, updates_s = zip(*(self._update(rank) for rank in range(ranks)), strict=True)
        if self.plan.order in CONTINUOUS:
            step_s = continuous_step_s(
                self.microbatches, costs, list(map(sum, zip(sums_s, updates_s, strict=True)))
            )
            return self._parts_without_flush(step_s, sum(sums_s) / ranks, sum(updates_s) / ranks)
        ends_s = steady_ends_s(self.plan.order, self.microbatches, chunks, ranks, costs)
        step_s = max(map(sum, zip(ends_s, sums_s, updates_s, strict=True)))
        compute_s, rings_s = self._mean_passes()
        sum_s, update_s = sum(sums_s) / ranks, sum(updates_s) / ranks
        bubble_s = sum(ends_s) / ranks - compute_s - rings_s
        wait_s = step_s - sum(ends_s) / ranks - sum_s - update_s
        return Parts(
            compute=compute_s, communicate=rings_s + sum_s, wait=wait_s, bubble=bubble_s, update=update_s
        )

    def _parts_without_flush(self, step_s: float, sum_s: float, update_s: float) -> Parts:
        compute_s, rings_s = self._mean_passes()
        bubble_s = max(0.0, step_s - compute_s - rings_s - sum_s - update_s)
        return Parts(
            compute=compute_s, communicate=rings_s + sum_s, wait=0.0, bubble=bubble_s, update=update_s
        )

    def _mean_passes(self) -> tuple[float, float]:
        """Return the seconds of all passes of a step, and of their collectives, as means over the ranks of a row."""
        splits = self.plan.order.startswith("zb")
        works = (Work.FORWARD, Work.INPUTS, Work.WEIGHTS) if splits else (Work.FORWARD, Work.BACKWARD)
        all_costs = [cost for work in works for cost in self._passes[work]]
        share = self.microbatches / self.places.stages
        return (
            share * sum(cost.compute_s for cost in all_costs),
            share * sum(cost.communicate_s for cost in all_costs),
        )

    def _onward(self, stage: int) -> tuple[float, float]:
        if stage + 1 == len(self.stages) or self.places.stages == 1:
            return 0.0, 0.0
        last = self.stages[stage][-1]
        _, lengths = rings_of(last.values_out, last.reductions, self.places.tensor)
        return self.places.between_stages(stage % self.places.stages, sum(lengths) * self.samples)

    def _held(self, rank: int) -> list[int]:
        stages = range(rank, len(self.stages), self.places.stages)
        return [segment.number for stage in stages for segment in self.stages[stage]]

    def _update(self, rank: int) -> tuple[float, float]:
        """Return the seconds in which a rank sums its gradients, and in which it updates its parameters."""
        holding = self.like(rank)
        itemsize, places, data = holding.layout.dtype.itemsize, self.places, self.plan.data
        sum_s = self._tied_s(rank)
        if self.plan.zero > 1:
            members, groups = places.data_members(rank), places.data_groups()
            if self.plan.zero == 2:
                nbytes = (unit.length * itemsize for unit in holding.units)
                sum_s += sum(places.ring_s(members, each, 1, groups) for each in nbytes)
            return sum_s, update_seconds(self.device, holding.own_length * itemsize)
        if self.plan.zero == 1 and data > 1:
            members, groups = places.data_members(rank), places.data_groups()
            sum_s += places.ring_s(members, holding.gradient_bytes, 1, groups)
            sum_s += places.ring_s(members, holding.own_length * itemsize, 1, groups)
            return sum_s, update_seconds(self.device, holding.own_length * itemsize / data)
        sum_s += places.sum_s(rank, holding.gradient_bytes, self.plan.algorithm)
        return sum_s, update_seconds(self.device, holding.own_length * itemsize)

    def _tied_s(self, rank: int) -> float:
        """Return the seconds in which stages sum the gradients of the parameters that they share."""
        seconds = 0.0
        for name, ranks in self._shared.items():
            if rank not in ranks:
                continue
            holders = [self.places.rank(0, stage) for stage in sorted(ranks)]
            shape = self.facts.module.get_parameter(name)
            count = self.cut.count(name, shape.shape)
            nbytes = count * shape.itemsize * self.facts.shapes.holding.gradient_ratio
            seconds += self.places.ring_s(holders, nbytes, 2, self.places.tensor)
        return seconds

    @cached_property
    def _shared(self) -> dict[str, set[int]]:
        """Ranks of a row that hold the same parameter, by its name. Only parameters of several ranks."""
        ranks: dict[str, set[int]] = {}
        for segment in self.cut.segments:
            for name in segment.parameters:
                ranks.setdefault(name, set()).add(segment.stage % self.places.stages)
        return {name: found for name, found in ranks.items() if len(found) > 1}

    @cached_property
    def _first_alike(self) -> list[int]:
        """For each rank of a row, the first rank that holds parameters of the same kinds."""
        kinds, first = self.facts.parameter_kinds, dict[Hashable, int]()
        segments = self.cut.segments
        keys = (
            tuple(kinds[name] for number in self._held(rank) for name in segments[number].parameters)
            for rank in range(self.places.stages)
        )
        return [first.setdefault(key, rank) for rank, key in enumerate(keys)]

    def like(self, rank: int) -> Holding:
        """Return the holding of the rank, or of one that holds parameters of the same kinds."""
        return self._holdings(self._first_alike[rank])

    @cached_property
    def _holdings(self) -> Callable[[int], Holding]:
        return cache(self.holding)

    def holding(self, rank: int) -> Holding:
        shapes, held = self.facts.shapes, self._held(rank)
        if self.plan.zero < 2:
            return shapes.part(self.cut, held).holding
        return shapes.sharded(self.cut, held, Sharding(self.plan.data, 0, self.plan.zero == 3)).holding

    @cached_property
    def segment_activations(self) -> list[SegmentBytes]:
        """Activations of a micro-batch in each segment."""
        return [SegmentBytes(*each) for each in self.stored.between(self.cut.bounds, self.samples).tolist()]


def row_samples(facts: TaskFacts, plan: Plan) -> int:
    """Return the samples of the row that has the most."""
    return -(-facts.batches.batch_size // plan.data)


def microbatches_of(plan: Plan, places: Places, samples: int) -> int:
    """Return the number of micro-batches that are not empty."""
    return max(1, min(plan.microbatches or 4 * places.stages, samples))


def mesh_steps(
    facts: TaskFacts, plan: Plan, places: Places, device: Device, *, finer: int | None = None
) -> list[tuple[MeshStep, float]]:
    """Cut the model as the strategy does. Return its step with the larger and with the smaller micro-batches, and the
    share of each: the samples of a row may not be a multiple of the micro-batches.

    `finer` is the number of segments of a stage. None for the default of a mesh.
    """
    layers, stored = facts.layers(plan.tensor, sequence=plan.sequence and plan.tensor > 1)
    if finer is None and plan.zero > 1:
        finer = FINER
    elif finer is None and not (facts.task.recompute and plan.tensor == 1):
        finer = 1
    cut = layers.cut(places.stages * plan.chunks, plan.cuts, finer=finer)
    samples = row_samples(facts, plan)
    micro = microbatches_of(plan, places, samples)
    size, longer = divmod(samples, micro)
    sizes = [(size + 1, longer / micro), (size, 1 - longer / micro)]
    return [
        (MeshStep(facts, plan, places, device, cut, stored, samples=each), share)
        for each, share in sizes
        if share
    ]
