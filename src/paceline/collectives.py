"""Runs schedules on a Context: the collectives that strategies and role programs call."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from paceline.context import Combine, Context
from paceline.schedules import broadcast as broadcast_schedules
from paceline.schedules import reduce as reduce_schedules
from paceline.schedules import ring
from paceline.schedules.steps import (
    Accumulate,
    Buffer,
    Chunks,
    Copy,
    Recv,
    Schedule,
    Send,
    chunk_bounds,
    chunk_slice,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["all_reduce", "broadcast", "gradient_norm", "interpret", "reduce"]

_COLLECTIVE_TAG = 0x8000_0000  # tags above it belong to collectives, tags below to `send` and `recv`


async def all_reduce(ctx: Context, tensor: Tensor, group: Sequence[int] | None = None) -> None:
    """Leave the sum of every rank's tensor on every rank of the group."""
    await _run(ctx, ring.schedule, tensor, group or ctx.workers, "sum")


async def broadcast(ctx: Context, tensor: Tensor, root: int, group: Sequence[int]) -> None:
    """Overwrite every rank's tensor by the root's."""
    await _run_rooted(ctx, broadcast_schedules.flat, tensor, root, group, "copy")


async def reduce(ctx: Context, tensor: Tensor, root: int, group: Sequence[int]) -> None:
    """Leave the sum of every rank's tensor on the root."""
    await _run_rooted(ctx, reduce_schedules.flat, tensor, root, group, "sum")


async def gradient_norm(ctx: Context, shard: slice, group: Sequence[int]) -> float | None:
    """The gradient's global norm, of which this rank knows one shard's part. None where the task does not clip."""
    if not ctx.clips:
        return None
    part = ctx.gradient[shard].double()
    square = (part @ part).reshape(1)
    await all_reduce(ctx, square, group)
    return math.sqrt(square.item())


async def interpret(
    ctx: Context, schedule: Schedule, group: Sequence[int], data: Tensor, *, combine: Combine, tag: int
) -> None:
    """Run this rank's rounds, message by message. `data` must be flat and contiguous."""
    bounds = chunk_bounds(data.numel(), schedule.chunks)
    scratch = data.new_empty(schedule.scratch * data.numel()) if _uses_scratch(schedule) else data

    def view(chunks: Chunks) -> Tensor:
        return (data if chunks.buffer is Buffer.DATA else scratch)[chunk_slice(chunks, bounds)]

    for steps in schedule.rounds:
        under_way = []
        for step in steps:
            if isinstance(step, Send):
                under_way.append(ctx.start(ctx.send(group[step.to], view(step.chunks), tag=tag)))
            elif isinstance(step, Copy):
                view(step.target).copy_(view(step.source))
            elif isinstance(step, Accumulate):
                view(step.target).add_(view(step.source))
            else:
                how: Combine = "copy" if isinstance(step, Recv) else combine
                message = ctx.recv(group[step.source], view(step.chunks), combine=how, tag=tag)
                if len(steps) <= 2:  # one way each: no need for a handle
                    await message
                else:
                    under_way.append(ctx.start(message))  # type: ignore[arg-type]
        for handle in under_way:
            await handle


async def _run(
    ctx: Context,
    schedule: Callable[[int, int], Schedule],
    tensor: Tensor,
    group: Sequence[int],
    combine: Combine,
) -> None:
    rank = group.index(ctx.rank)
    await ctx.execute(
        _cached(schedule, rank, len(group)), group, tensor, combine=combine, tag=_tag(ctx, group)
    )


async def _run_rooted(
    ctx: Context,
    schedule: Callable[[int, int, int], Schedule],
    tensor: Tensor,
    root: int,
    group: Sequence[int],
    combine: Combine,
) -> None:
    rank, position = group.index(ctx.rank), group.index(root)
    plan = _cached_rooted(schedule, rank, len(group), position)
    await ctx.execute(plan, group, tensor, combine=combine, tag=_tag(ctx, group))


@lru_cache(maxsize=4096)
def _cached(schedule: Callable[[int, int], Schedule], rank: int, size: int) -> Schedule:
    return schedule(rank, size)


@lru_cache(maxsize=4096)
def _cached_rooted(
    schedule: Callable[[int, int, int], Schedule], rank: int, size: int, root: int
) -> Schedule:
    return schedule(rank, size, root)


def _tag(ctx: Context, group: Sequence[int]) -> int:
    """A tag of its own for each collective, the same on every rank: several may be under way at once."""
    return _COLLECTIVE_TAG | _group_number(tuple(group)) << 16 | ctx.count_collective(group)


@lru_cache(maxsize=1024)
def _group_number(group: tuple[int, ...]) -> int:
    return zlib.crc32(repr(group).encode()) & 0x7FFF


@lru_cache(maxsize=4096)
def _uses_scratch(schedule: Schedule) -> bool:
    used = (
        chunks.buffer
        for steps in schedule.rounds
        for step in steps
        for chunks in ((step.source, step.target) if isinstance(step, (Copy, Accumulate)) else (step.chunks,))
    )
    return Buffer.SCRATCH in used
