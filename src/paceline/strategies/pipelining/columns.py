"""The program of a rank that has a part of every matrix, and what such ranks do together besides their sums.

Parameters that are not split are the same on all ranks of a group, to the bit: they are computed of the same values.
The global norm counts them once. The first rank is shown the parts of the others when the run looks at the model.
"""

from __future__ import annotations

from paceline.collectives import all_reduce, gradient_norm
from paceline.context import Batch, Context, Net
from paceline.mesh import Mesh
from paceline.strategies.pipelining.segments import Segments
from paceline.strategies.pipelining.stage import Stage
from paceline.tensors import square_of

__all__ = ["Columns", "train_in_columns"]

_SHOWN = 2**30  # a tag of its own


async def train_in_columns(ctx: Context, *, size: int) -> None:
    """Split the model among groups of so many neighbours, and train."""
    mesh = Mesh(ctx.net, data=ctx.net.size // size, tensor=size)
    tensor, data = mesh["tensor"], mesh["data"]
    pieces = ctx.model.pieces
    pieces.cut(1, tensor=size)
    pieces.hold(range(len(pieces.segments)), position=tensor.rank)
    stage = Stage(ctx, ctx.net.split([ctx.net.rank]), 1, Segments(pieces, tensor))
    columns = Columns(ctx, tensor)
    async for step in ctx.rounds():
        batch = _slice_of_group(ctx, step, data.rank, size)
        if batch.count:
            await stage.compute(batch, 1, "gpipe")
        else:  # the other groups have all samples
            pieces.begin_batch(batch, 1)
            pieces.end_batch()
        if data.size > 1:
            await all_reduce(data, ctx.model.gradient, "shared" if data.shares_memory else "ring")
        await columns.update()
        if data.rank == 0:
            await columns.show(step)


def _slice_of_group(ctx: Context, step: int, group: int, size: int) -> Batch:
    """What the workers of a group would have one by one."""
    slices = [ctx.model.data.batch_of(worker, step) for worker in range(group * size, (group + 1) * size)]
    first, count = slices[0], sum(each.count for each in slices)
    return Batch(first.step, first.start, count, first.total, first.whole, first.update)


class Columns:
    """A tensor group."""

    def __init__(self, ctx: Context, net: Net) -> None:
        self._ctx = ctx
        self._model = ctx.model
        self._net = net
        segments = ctx.model.pieces.segments
        parted = {name for segment in segments for name in segment.parted}
        held = dict.fromkeys(name for segment in segments for name in segment.parameters)
        self._foreign = [
            name for name in held if net.rank > 0 and name not in parted and ctx.model.pieces.trains(name)
        ]
        """Parameters that count with the first rank."""

    async def update(self) -> None:
        """One update with the gradients of all ranks."""
        await self._model.apply(norm=await self._norm() if self._model.clips else None)

    async def _norm(self) -> float:
        square = square_of(self._model.gradient)
        for name in self._foreign:
            square = square - square_of(self._model.pieces.gradient_of(name))
        return await gradient_norm(self._net, square.clamp(min=0).sqrt())

    async def show(self, step: int) -> None:
        """Let the run see the whole model after a step, if it wants to."""
        if not self._ctx.log.inspects(step) and not self._model.pieces.averages:
            return
        net, model = self._net, self._model
        segments = range(len(model.pieces.segments))
        if net.rank > 0:
            await net.send(0, model.parameters, tag=_SHOWN)
            return
        buffers = model.pieces.held_buffers
        model.pieces.put(segments, model.parameters, buffers)
        for position in range(1, net.size):
            message = await net.recv(position, tag=_SHOWN)
            model.pieces.put(segments, message.tensor, buffers, position=position)
