"""BatchNorm statistics and other buffers, in synchronous strategies."""

from __future__ import annotations

from paceline.collectives import broadcast
from paceline.context import Context


async def follow_buffers(ctx: Context) -> None:
    """Broadcast the buffers of the first worker to all workers."""
    for tensor in ctx.model.buffers:
        await broadcast(ctx, tensor, root=0)
