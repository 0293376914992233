"""The program of a rank of a pipeline, whatever its order."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.context import Batch, Context
from paceline.strategies.pipelining.pieces import Pieces
from paceline.strategies.pipelining.segments import Segments, segments_of
from paceline.strategies.pipelining.stage import Stage

__all__ = ["names_in", "pipeline"]

_NEWS = 2**30  # a tag of its own


async def pipeline(
    ctx: Context,
    *,
    stages: int | None,
    chunks: int,
    microbatches: int | None,
    order: str,
    cuts: Sequence[str],
) -> None:
    """Cut the model into stages of so many chunks, hold one of them, and train.

    Without a number of stages there are as many as workers, or as the model has layers: then some workers hold none.
    Without one of micro-batches there are four for each stage.
    """
    model = ctx.model
    ranks = min(ctx.net.size, max(1, model.pieces.most_segments // chunks)) if stages is None else stages
    model.pieces.cut(ranks * chunks, cuts)
    if ctx.net.rank >= ranks:
        await _look_on(ctx)
        return
    net = ctx.net.split(range(ranks))
    held = [segments_of(model.pieces, range(rank, ranks * chunks, ranks)) for rank in range(ranks)]
    model.pieces.hold(held[net.rank])
    stage, pieces = Stage(ctx, net, chunks, Segments(model.pieces)), Pieces(ctx, net, held)
    async for step in ctx.rounds():
        batch = _whole(model.data.batch_of(0, step))
        await stage.compute(batch, 4 * ranks if microbatches is None else microbatches, order)
        await pieces.update()
        await pieces.show(step)
        if net.rank == 0:
            for onlooker in range(ranks, ctx.net.size):
                await ctx.net.send(onlooker, model.gradient[:0], tag=_NEWS)


async def _look_on(ctx: Context) -> None:
    """The run of a rank that holds nothing: it keeps step with the others, and ends where they end."""
    async for _ in ctx.rounds():
        await ctx.net.recv(0, tag=_NEWS)


def names_in(cuts: str) -> tuple[str, ...]:
    """The layers that are named in the words of a strategy."""
    return tuple(name for name in cuts.split("+") if name)


def _whole(batch: Batch) -> Batch:
    """The global batch that a worker's slice is of."""
    return Batch(batch.step, 0, batch.total, batch.total, batch.whole, batch.update)
