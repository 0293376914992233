"""The model in segments in virtual time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from paceline.clusters.rank.stages import KINDS, RankStages
from paceline.clusters.simulated import whole_collective
from paceline.clusters.simulated.events import PassEvent
from paceline.clusters.simulated.net import SimulatedNet
from paceline.clusters.simulated.stage_plan import Ring, StagePlan, rings_of
from paceline.clusters.simulated.stage_timing import StagePart
from paceline.context import BackwardPart, Batch, BoundaryValues, Hooks, Net
from paceline.costs.prices import Pass
from paceline.model.cutting.layers import Layers
from paceline.model.engines.engine import StageTracker
from paceline.model.hooks.blocks import BlockLayers

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext  # noqa: F401

T = TypeVar("T")


class SimulatedStages(RankStages["SimulatedContext"]):
    """Segments of a simulated rank. A pass takes its price. Layers are found once for all ranks."""

    __slots__ = ()

    def _find_layers(self, tensor: int, sequence: bool, hooks: Hooks, passes: int) -> Layers | BlockLayers:
        layers, key = self._ctx.world.layers, (tensor, sequence, hooks, passes)
        if key not in layers:
            layers[key] = super()._find_layers(*key)
        return layers[key]

    def _timed(
        self,
        kind: int,
        one: Pass,
        micro: int,
        run: Callable[[], T],
        processor_s: Callable[[], float] = time.thread_time,
    ) -> PassEvent[T]:
        return PassEvent(self._ctx, kind, one, micro, run)

    def _new_pass(self, way: str, segment: int, batch: Batch) -> Pass:
        one, timer = super()._new_pass(way, segment, batch), self._ctx.world.pass_timer
        if timer is None:
            return one
        cut = self._of_cut().at(self._position)
        measured_s = timer.seconds(cut, way, segment, batch)
        return one if measured_s is None else replace(one, measured_s=measured_s + self._copy_s(way, segment))

    def _copy_s(self, way: str, segment: int) -> float:
        """Return the seconds in which a gradient is copied to where other ranks read it, if the segment is sharded."""
        replica, rate = self._learner.replica, self._ctx.world.copy_s_per_byte
        if way == "forward" or way == "inputs" or not replica.holding.units:
            return 0.0
        return self.segments[segment].parameter_count * replica.layout.dtype.itemsize * rate

    # Passes and reductions of a stage, timed as a whole

    def forward(
        self, segments: Sequence[int], micro: int, given: BoundaryValues, net: Net | None = None
    ) -> Awaitable[BoundaryValues]:
        tracker = None if net is None else self._tracker(segments, net)
        if tracker is None or net is None:
            return super().forward(segments, micro, given, net)
        batch = self._micros[micro]

        def run() -> BoundaryValues:
            if segments[-1] + 1 == len(self.segments):
                self.note_micro_loss(micro, None)
            return tracker.forward_through(segments, batch, micro, given)

        return self._through("forward", segments, micro, net, run)

    def backward(
        self,
        segments: Sequence[int],
        micro: int,
        gradients: Sequence[Tensor],
        part: BackwardPart = "both",
        net: Net | None = None,
    ) -> Awaitable[Sequence[Tensor]]:
        tracker = None if net is None else self._tracker(segments, net)
        if tracker is None or net is None:
            return super().backward(segments, micro, gradients, part, net)
        return self._through(
            part, segments, micro, net, lambda: tracker.backward_through(segments, micro, part)
        )

    def _tracker(self, segments: Sequence[int], net: Net) -> StageTracker | None:
        """Return the tracker of whole stages. None if passes are simulated one by one: values, or few ranks."""
        if self._ctx.world.cores is not None:  # passes slow each other down, so they are simulated one by one
            return None
        many = self._ctx.net.size >= whole_collective.MANY
        suits = many and not net.shares_memory if net.size > 1 else len(segments) > 1
        return self._part().engine.stage_tracker if suits else None

    def _through(
        self, way: str, segments: Sequence[int], micro: int, net: Net, run: Callable[[], T]
    ) -> StagePart[T]:
        assert isinstance(net, SimulatedNet)
        batch, plans = self._micros[micro], self._ctx.world.plans
        key = way, segments[0], segments[-1], batch.count, batch.total, net.size
        if key not in plans:
            plans[key] = self._plan(way, segments, batch, net.size)
        return StagePart(self._ctx, net, plans[key], micro, run)

    def _plan(self, way: str, segments: Sequence[int], batch: Batch, size: int) -> StagePlan:
        order = segments if way == "forward" else tuple(reversed(segments))
        passes = [self._pass(way, segment, batch) for segment in order]
        return StagePlan(KINDS[way], passes, [self._rings(way, each, batch, size) for each in order], size)

    def _rings(self, way: str, number: int, batch: Batch, size: int) -> list[Ring]:
        """Return the ring collectives that a tensor group uses to reduce the results of a pass."""
        of = self.segments[number]
        if way == "forward":
            return rings_of(of.values_out, of.reductions, size, batch.count)[0]
        if way == "weights" or not of.gradient_reductions:
            return []
        before = self.segments[number - 1]  # gradients have the size of that segment's outputs
        _, lengths = rings_of(before.values_out, before.reductions, size, batch.count)
        return rings_of(lengths, of.gradient_reductions, size)[0]
