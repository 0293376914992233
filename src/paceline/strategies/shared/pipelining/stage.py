"""One rank of a pipeline: it runs the actions of its schedule and sends the result of each.

A rank has one stage of the model, or several (chunks): stage k is chunk k // p of rank k % p.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from paceline.context import BackwardPart, Batch, BoundaryValues, Context, Handle, Net
from paceline.schedules.pipeline import ORDERS, Action, Phase
from paceline.schedules.pipeline.actions import stage_of
from paceline.strategies.shared.pipelining.messages import (
    gradients_out,
    outputs_out,
    receive_gradients,
    receive_outputs,
)
from paceline.strategies.shared.pipelining.segments import Segments

if TYPE_CHECKING:
    from torch import Tensor

_PARTS: dict[Phase, BackwardPart] = {
    Phase.BACKWARD: "both",
    Phase.INPUTS: "inputs",
    Phase.WEIGHTS: "weights",
}


class Stage:
    """A rank's part in the steps of a pipeline. `net` is the pipeline's ranks, in the order of its stages."""

    def __init__(self, ctx: Context, net: Net, chunks: int, segments: Segments) -> None:
        self._ctx = ctx
        self._stages = ctx.model.stages
        self._segments = segments
        self._net = net
        self._chunks = chunks
        self._last = net.size * chunks - 1
        self._sending: list[Handle[None]] = []
        self._here: dict[tuple[int, int], BoundaryValues | Sequence[Tensor]] = {}
        """Values that cross a cut within this rank, by receiving stage and micro-batch."""
        self._wanted: dict[tuple[int, int], int] = {}
        """Number of gradients that a stage receives back, by stage and micro-batch."""

    async def compute(
        self, batch: Batch, microbatches: int, order: str, *, widest: int | None = None
    ) -> None:
        """Compute the gradient of a batch for the segments of this rank, in the given order.

        `widest` is the sample count of the largest batch among ranks that share segments. These ranks make the same
        passes together, including passes of micro-batches that are empty on this rank.
        """
        with self._stages.batch(batch, microbatches, widest=widest) as micros:
            for action in ORDERS[order](self._net.rank, self._net.size, len(micros), self._chunks):
                await self.run(action, is_empty=not micros[action.micro].count)
            for handle in self._sending:
                await handle
            self._sending.clear()

    async def run(self, action: Action, *, is_empty: bool = False) -> None:
        """Run one action of an open batch, and start to send its result."""
        stage = stage_of(self._net.rank, action.chunk, self._net.size)
        if is_empty:
            await self._segments.pass_by(stage, _PARTS.get(action.phase))
        elif action.phase is Phase.FORWARD:
            await self._forward(stage, action.micro)
        else:
            await self._backward(stage, action)

    async def _forward(self, stage: int, micro: int) -> None:
        given = await self._inputs(stage, micro)
        made = await self._segments.forward(stage, micro, given)
        if stage == self._last:
            return
        self._wanted[stage, micro] = sum(made.wanted)
        if self._net.size == 1:
            self._here[stage + 1, micro] = made
        else:
            self._start(outputs_out(self._net, self._rank_of(stage + 1), stage, micro, made))

    async def _inputs(self, stage: int, micro: int) -> BoundaryValues:
        if stage == 0:
            return BoundaryValues()
        if self._net.size > 1:
            return await receive_outputs(self._net, self._rank_of(stage - 1), stage - 1, micro)
        crossing = self._here.pop((stage, micro))
        assert isinstance(crossing, BoundaryValues)
        return crossing

    async def _backward(self, stage: int, action: Action) -> None:
        micro, phase = action.micro, action.phase
        given = await self._gradients(stage, micro) if phase.gives_inputs else ()
        made = await self._segments.backward(stage, micro, given, _PARTS[phase])
        if stage == 0 or not phase.gives_inputs:
            return
        if self._net.size == 1:
            self._here[stage - 1, micro] = made
        else:
            self._start(gradients_out(self._net, self._rank_of(stage - 1), stage, micro, made))

    async def _gradients(self, stage: int, micro: int) -> Sequence[Tensor]:
        if stage == self._last:
            return ()
        count = self._wanted.pop((stage, micro))
        if self._net.size > 1:
            return await receive_gradients(self._net, self._rank_of(stage + 1), stage + 1, micro, count)
        gradients = self._here.pop((stage, micro))
        assert not isinstance(gradients, BoundaryValues)
        return gradients

    def _start(self, messages: Iterable[Awaitable[None]]) -> None:
        """Start sends in the background. If a pipeline waited for its sends, it would deadlock."""
        self._sending = [handle for handle in self._sending if not handle.done]
        self._sending += [self._ctx.start(message) for message in messages]

    def _rank_of(self, stage: int) -> int:
        return stage % self._net.size
