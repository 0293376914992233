"""The model in segments, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from paceline.clusters.rank.pieces import KINDS, RankPieces
from paceline.clusters.simulated import whole_collective
from paceline.clusters.simulated.events import PassEvent
from paceline.clusters.simulated.group_run import RunEvent
from paceline.clusters.simulated.net import SimulatedNet
from paceline.clusters.simulated.run_plan import Ring, RunPlan, rings_of
from paceline.context import BackwardPart, Batch, Crossing, Net
from paceline.costs.prices import Pass
from paceline.replica.pieces.blank import BlankPart
from paceline.replica.pieces.cutting import Layers

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext  # noqa: F401

__all__ = ["SimulatedPieces"]

T = TypeVar("T")


class SimulatedPieces(RankPieces["SimulatedContext"]):
    """A pass costs its price. The layers are found once for all ranks."""

    __slots__ = ()

    def _find_layers(self, tensor: int, sequence: bool) -> Layers:
        layers, key = self._ctx.world.layers, (tensor, sequence)
        if key not in layers:
            layers[key] = super()._find_layers(tensor, sequence)
        return layers[key]

    def _timed(self, kind: int, one: Pass, micro: int, run: Callable[[], T]) -> PassEvent[T]:
        return PassEvent(self._ctx, kind, one, micro, run)

    def _new_pass(self, way: str, segment: int, batch: Batch) -> Pass:
        one, timer = super()._new_pass(way, segment, batch), self._ctx.world.pass_timer
        if timer is None:
            return one
        cut = self._of_cut().at(self._position)
        return replace(one, measured_s=timer.seconds(cut, way, segment, batch))

    # Passes and sums of a stage as a whole

    def forward_through(
        self, segments: Sequence[int], micro: int, given: Crossing, net: Net
    ) -> RunEvent[Crossing] | None:
        part = self._blank_part(net)
        if part is None:
            return None
        batch = self._micros[micro]

        def run() -> Crossing:
            if segments[-1] + 1 == len(self.segments):
                self._note_loss(batch, float("nan"))
            return part.forward_through(segments, batch, micro, given)

        return self._through("forward", segments, micro, net, run)

    def backward_through(
        self, segments: Sequence[int], micro: int, gradients: Sequence[Tensor], part: BackwardPart, net: Net
    ) -> RunEvent[Sequence[Tensor]] | None:
        blank = self._blank_part(net)
        if blank is None:
            return None
        return self._through(
            part, segments, micro, net, lambda: blank.backward_through(segments, micro, part)
        )

    def _blank_part(self, net: Net) -> BlankPart | None:
        """What this rank holds, if a stage of it is timed as a whole: without mathematics, in a world of many ranks."""
        ctx, part = self._ctx, self._part()
        many = net.size > 1 and ctx.net.size >= whole_collective.MANY
        suits = many and ctx.world.whole_runs and not net.shares_memory
        return part if suits and isinstance(part, BlankPart) else None

    def _through(
        self, way: str, segments: Sequence[int], micro: int, net: Net, run: Callable[[], T]
    ) -> RunEvent[T]:
        assert isinstance(net, SimulatedNet)
        batch, plans = self._micros[micro], self._ctx.world.plans
        key = way, segments[0], segments[-1], batch.count, batch.total, net.size
        if key not in plans:
            plans[key] = self._plan(way, segments, batch, net.size)
        return RunEvent(self._ctx, net.group, plans[key], micro, run)

    def _plan(self, way: str, segments: Sequence[int], batch: Batch, size: int) -> RunPlan:
        order = segments if way == "forward" else tuple(reversed(segments))
        passes = [self._pass(way, segment, batch) for segment in order]
        return RunPlan(KINDS[way], passes, [self._rings(way, each, batch, size) for each in order], size)

    def _rings(self, way: str, number: int, batch: Batch, size: int) -> list[Ring]:
        """Those in which a tensor group makes one of what its ranks' passes have made."""
        of = self.segments[number]
        if way == "forward":
            return rings_of(of.values_out, of.sums, size, batch.count)[0]
        if way == "weights" or not of.gradient_sums:
            return []
        before = self.segments[number - 1]  # gradients are as long as what came from there
        _, lengths = rings_of(before.values_out, before.sums, size, batch.count)
        return rings_of(lengths, of.gradient_sums, size)[0]
