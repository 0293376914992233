"""BatchNorm's statistics and the like, in strategies whose workers compute in step."""

from __future__ import annotations

from paceline.collectives import broadcast
from paceline.context import Context

__all__ = ["follow_buffers"]


async def follow_buffers(ctx: Context) -> None:
    """Give every worker the buffers of the first."""
    for tensor in ctx.model.buffers:
        await broadcast(ctx, tensor, root=0)
