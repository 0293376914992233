"""One rank of a pipeline: it follows its order's actions, and sends on what each makes."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from paceline.context import BackwardPart, Batch, Context, Crossing, Handle, Net
from paceline.schedules.pipeline import ORDERS, Action, Phase
from paceline.schedules.pipeline.actions import segment_of
from paceline.strategies.pipelining.messages import (
    gradients_out,
    outputs_out,
    receive_gradients,
    receive_outputs,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Stage", "segments_of"]

_PARTS: dict[Phase, BackwardPart] = {
    Phase.BACKWARD: "both",
    Phase.INPUTS: "inputs",
    Phase.WEIGHTS: "weights",
}


def segments_of(rank: int, ranks: int, chunks: int) -> list[int]:
    """What a rank holds."""
    return [segment_of(rank, chunk, ranks) for chunk in range(chunks)]


class Stage:
    """A rank's part in the steps of a pipeline. `net` is the pipeline's ranks, in the order of its stages."""

    def __init__(self, ctx: Context, net: Net, chunks: int) -> None:
        self._ctx = ctx
        self._model = ctx.model
        self._net = net
        self._chunks = chunks
        self._last = net.size * chunks - 1
        self._sending: list[Handle[None]] = []
        self._here: dict[tuple[int, int], Crossing | Sequence[Tensor]] = {}
        """Where one rank has both sides of a cut: what goes over it, by the segment that takes it and micro-batch."""
        self._wanted: dict[tuple[int, int], int] = {}
        """How many gradients come back to a segment, by micro-batch."""

    async def compute(self, batch: Batch, microbatches: int, order: str) -> None:
        """The gradient of a batch, in the order given; of what this rank holds."""
        micros = self._model.begin_batch(batch, microbatches)
        for action in ORDERS[order](self._net.rank, self._net.size, len(micros), self._chunks):
            segment = segment_of(self._net.rank, action.chunk, self._net.size)
            if action.phase is Phase.FORWARD:
                await self._forward(segment, action.micro)
            else:
                await self._backward(segment, action)
        for handle in self._sending:
            await handle
        self._sending.clear()
        self._model.end_batch()

    async def _forward(self, segment: int, micro: int) -> None:
        given = await self._inputs(segment, micro)
        made = await self._model.forward(segment, micro, given)
        if segment == self._last:
            return
        self._wanted[segment, micro] = sum(made.wanted)
        if self._net.size == 1:
            self._here[segment + 1, micro] = made
        else:
            self._start(outputs_out(self._net, self._rank_of(segment + 1), segment, micro, made))

    async def _inputs(self, segment: int, micro: int) -> Crossing:
        if segment == 0:
            return Crossing()
        if self._net.size > 1:
            return await receive_outputs(self._net, self._rank_of(segment - 1), segment - 1, micro)
        crossing = self._here.pop((segment, micro))
        assert isinstance(crossing, Crossing)
        return crossing

    async def _backward(self, segment: int, action: Action) -> None:
        micro, phase = action.micro, action.phase
        given = await self._gradients(segment, micro) if phase.gives_inputs else ()
        made = await self._model.backward(segment, micro, given, _PARTS[phase])
        if segment == 0 or not phase.gives_inputs:
            return
        if self._net.size == 1:
            self._here[segment - 1, micro] = made
        else:
            self._start(gradients_out(self._net, self._rank_of(segment - 1), segment, micro, made))

    async def _gradients(self, segment: int, micro: int) -> Sequence[Tensor]:
        if segment == self._last:
            return ()
        count = self._wanted.pop((segment, micro))
        if self._net.size > 1:
            return await receive_gradients(self._net, self._rank_of(segment + 1), segment + 1, micro, count)
        gradients = self._here.pop((segment, micro))
        assert not isinstance(gradients, Crossing)
        return gradients

    def _start(self, messages: Iterable[Awaitable[None]]) -> None:
        """Messages go beside the computing: a pipeline whose sends waited would stand still."""
        self._sending = [handle for handle in self._sending if not handle.done]
        self._sending += [self._ctx.start(message) for message in messages]

    def _rank_of(self, segment: int) -> int:
        return segment % self._net.size
