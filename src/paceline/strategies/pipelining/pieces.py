"""What ranks with different pieces of one model do together, besides passing values on.

A tied parameter is held by several stages: its gradients are summed, so that it stays the same everywhere. What is not
split in a tensor group is the same on all its ranks, to the bit: it is computed of the same values. The global norm is
of every parameter once. And the first rank is shown the whole model when the run looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from paceline.collectives import all_reduce, norm_of_squares
from paceline.context import Context, Net
from paceline.strategies.pipelining.data_axis import DataAxis
from paceline.strategies.pipelining.joining import sum_together
from paceline.tensors import square_of

__all__ = ["Pieces"]

_SHOWN = 2**30  # tags of their own
_READY = 2**29


class Pieces:
    """Who holds what. `held` are the segments of each rank of `net`, the stages of a pipeline.

    `row` is all ranks that hold the model together, stage by stage: those of a stage are a tensor group.
    """

    def __init__(
        self,
        ctx: Context,
        row: Net,
        net: Net,
        held: Sequence[Sequence[int]],
        data: DataAxis,
        tensor: Net | None = None,
    ) -> None:
        """`tensor`: the ranks that sum what each has a part of: the gradients of parameters that are used for parts of
        a sequence. None: they have done so already."""
        self._ctx = ctx
        self._data = data
        self._tensor = tensor
        self._model = ctx.model
        self._row = row
        self._net = net
        self._held = held
        self._size = row.size // net.size
        self._tied = self._find_tied()
        """The ranks of each parameter that this one trains together with other stages."""
        self._foreign = [name for name, ranks in self._tied.items() if ranks[0] != net.rank]
        """Parameters that count with another rank."""
        segments = [ctx.model.pieces.segments[number] for number in held[net.rank]]
        names = dict.fromkeys(name for segment in segments for name in segment.partial)
        self._partial = [name for name in names if ctx.model.pieces.trains(name)]
        if row.rank % self._size:
            self._foreign += [name for name in self._find_whole() if name not in self._foreign]

    def _find_whole(self) -> list[str]:
        """What every rank of the tensor group trains, all of it."""
        segments = [self._model.pieces.segments[number] for number in self._held[self._net.rank]]
        parted = {name for segment in segments for name in segment.parted}
        names = dict.fromkeys(name for segment in segments for name in segment.parameters)
        return [name for name in names if name not in parted and self._model.pieces.trains(name)]

    def _find_tied(self) -> dict[str, list[int]]:
        """The ranks of each parameter that this rank trains together with others."""
        pieces, segments = self._model.pieces, self._model.pieces.segments
        names = [set[str]().union(*(segments[s].parameters for s in held)) for held in self._held]
        own = names[self._net.rank]
        shared = set[str]().union(
            *(own & other for rank, other in enumerate(names) if rank != self._net.rank)
        )
        in_order = (
            dict.fromkeys(name for segment in segments for name in segment.parameters) if shared else ()
        )
        return {
            name: [rank for rank, each in enumerate(names) if name in each]
            for name in in_order
            if name in shared and pieces.trains(name)
        }

    async def update(self) -> None:
        """One update of the whole model with the gradients of all ranks."""
        model = self._model
        if self._tensor is not None and self._partial:
            places = [model.pieces.place_of(name) for name in self._partial]
            await sum_together(self._tensor, [model.gradient[place] for place in places])
        for name, ranks in self._tied.items():
            await all_reduce(self._net.split(ranks), model.gradient[model.pieces.place_of(name)], "ring")
        await self._data.sum()
        await self._data.apply(await self._norm() if model.clips else None)

    async def _norm(self) -> float:
        """The global norm: each rank knows its own part of it, and each parameter counts once."""
        own = self._data.own
        square = square_of(self._model.gradient[own])
        for name in self._foreign:
            square = square - square_of(self._model.gradient[_common(self._model.pieces.place_of(name), own)])
        square = square.clamp(min=0)  # rounding may have left less than nothing
        if self._data.shared_by is not None:
            await all_reduce(self._data.shared_by, square, "ring")
        return await norm_of_squares(self._row, square)

    async def show(self, step: int) -> None:
        """Let the run see the whole model after a step, if it wants to.

        That is measuring: it begins when all have ended the step, and its time does not count. A moving average, which
        needs to see every step, is part of the training.
        """
        row, log = self._row, self._ctx.log
        if log.inspects(step):
            await self._await_all()
            with log.measuring() if row.rank == 0 else nullcontext():
                await self._bring_together()
        elif self._model.pieces.averages:
            await self._bring_together()

    async def _await_all(self) -> None:
        """The first rank waits until the others have ended the step, and they until it asks for what they hold."""
        row = self._row
        nothing = self._model.gradient[:0]
        if row.rank > 0:
            await row.send(0, nothing, tag=_READY)
            await row.recv(0, tag=_READY)
            return
        for rank in range(1, row.size):
            await row.recv(rank, tag=_READY)
        for rank in range(1, row.size):
            await row.send(rank, nothing, tag=_READY)

    async def _bring_together(self) -> None:
        row, pieces = self._row, self._model.pieces
        if row.rank > 0:
            buffers = pieces.held_buffers
            await row.send(0, pieces.held_parameters, tag=_SHOWN, header=(float(len(buffers)),))
            for number, buffer in enumerate(buffers):
                await row.send(0, buffer, tag=_SHOWN + 1 + number)
            return
        pieces.put(self._held[0], pieces.held_parameters, pieces.held_buffers)
        for rank in range(1, row.size):
            message = await row.recv(rank, tag=_SHOWN)
            count = int(message.header[0])
            others = [await row.recv(rank, tag=_SHOWN + 1 + number) for number in range(count)]
            stage, position = divmod(rank, self._size)
            pieces.put(self._held[stage], message.tensor, [each.tensor for each in others], position=position)


def _common(one: slice, other: slice) -> slice:
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
