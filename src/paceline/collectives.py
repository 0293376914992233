"""Communication patterns for strategies and role programs, each a schedule run on a Context.

Every rank of the group calls the same pattern with tensors of the same length and dtype. A group is a sequence of
ranks, all workers by default; roots are ranks too. Start one with `ctx.start(…)` to let it go on beside other work.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from paceline.context import ANY, Combine, Context
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules import ALL_REDUCE, COLLECTIVES
from paceline.schedules.collective import Collective
from paceline.schedules.steps import chunk_bounds

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "answer",
    "barrier",
    "broadcast",
    "choose_algorithm",
    "choose_schedule",
    "gather",
    "gradient_norm",
    "pull",
    "push",
    "reduce",
    "reduce_scatter",
    "scatter",
]

ALGORITHMS = ("auto", *ALL_REDUCE, "shared", "native")
"""What `all_reduce` can be told: a schedule, shared memory, or torch.distributed."""

OPERATIONS = ("sum", "mean", "max", "min")
Operation = Literal["sum", "mean", "max", "min"]

# Tags above this bit belong to collectives, tags below to `send` and `recv`.
_COLLECTIVE_TAG = 0x8000_0000
_PULL_TAG = 0x7FFF_FFFF
_SMALL_BYTES = 32 * 2**10
_STREAM_BYTES = 2**20
_LINK_BYTES = 64 * 2**10


async def push(ctx: Context, tensor: Tensor, to: int) -> None:
    """Send a tensor to a rank, which takes it with `ctx.recv`."""
    await ctx.send(to, tensor)


async def pull(ctx: Context, into: Tensor, source: int) -> None:
    """Ask a rank for a tensor, and wait for it. The other rank gives it with `answer`."""
    await ctx.send(source, into[:0], tag=_PULL_TAG)
    await ctx.recv(source, into, tag=_PULL_TAG)


async def answer(ctx: Context, tensor: Tensor, to: int = ANY) -> int:
    """Give a tensor to the next rank that pulls (or to one that is named); return which it was."""
    request = await ctx.recv(to, tag=_PULL_TAG)
    await ctx.send(request.source, tensor, tag=_PULL_TAG)
    return request.source


async def barrier(ctx: Context, group: Sequence[int] | None = None) -> None:
    """Return when every rank of the group has come here."""
    import torch

    await _run(ctx, "barrier", "dissemination", torch.empty(0), group)


async def broadcast(
    ctx: Context, tensor: Tensor, root: int, group: Sequence[int] | None = None, algorithm: str = "tree"
) -> None:
    """Overwrite every rank's tensor by the root's."""
    await _run(ctx, "broadcast", algorithm, tensor, group, root=root)


async def reduce(
    ctx: Context,
    tensor: Tensor,
    root: int,
    group: Sequence[int] | None = None,
    op: Operation = "sum",
    algorithm: str = "tree",
) -> None:
    """Leave the combination of every rank's tensor on the root. The others' tensors are used up."""
    await _run(ctx, "reduce", algorithm, tensor, group, root=root, op=op)


async def scatter(ctx: Context, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Tensor:
    """Give each rank its own chunk of the root's tensor; return this rank's chunk, a view."""
    await _run(ctx, "scatter", "flat", tensor, group, root=root)
    return own_chunk(ctx, tensor, group)


async def gather(ctx: Context, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> None:
    """Put each rank's own chunk of the tensor into the root's tensor."""
    await _run(ctx, "gather", "flat", tensor, group, root=root)


async def all_gather(ctx: Context, tensor: Tensor, group: Sequence[int] | None = None) -> None:
    """Put each rank's own chunk of the tensor into every rank's tensor."""
    await _run(ctx, "all-gather", "ring", tensor, group)


async def reduce_scatter(
    ctx: Context, tensor: Tensor, group: Sequence[int] | None = None, op: Operation = "sum"
) -> Tensor:
    """Leave the combination of each chunk on the rank that owns it; return that chunk, a view."""
    await _run(ctx, "reduce-scatter", "ring", tensor, group, op=op)
    return own_chunk(ctx, tensor, group)


async def all_to_all(ctx: Context, tensor: Tensor, group: Sequence[int] | None = None) -> None:
    """Exchange chunks: rank i's chunk j becomes rank j's chunk i. The length must divide by the group's size."""
    size = len(_check_group(ctx, group))
    if tensor.numel() % size:
        raise ConfigurationError(
            "tensor", f"must have a length that divides by the group's size {size}", tensor.numel(), "pad it"
        )
    await _run(ctx, "all-to-all", "pairwise", tensor, group)


async def all_reduce(
    ctx: Context,
    tensor: Tensor,
    algorithm: str = "auto",
    *,
    group: Sequence[int] | None = None,
    op: Operation = "sum",
) -> None:
    """Leave the combination of every rank's tensor on every rank."""
    if algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    if algorithm == "auto":
        algorithm = choose_algorithm(ctx, tensor, group)
    if algorithm == "shared":
        await _all_reduce_shared(ctx, tensor, _check_group(ctx, group), op)
    elif algorithm == "native":
        await ctx.native_all_reduce(tensor, _check_group(ctx, group), _check_op(op))
    else:
        await _run(ctx, "all-reduce", algorithm, tensor, group, op=op)


def choose_algorithm(ctx: Context, tensor: Tensor, group: Sequence[int] | None = None) -> str:
    """What `auto` means for a tensor: docs/decisions/0004-auto.md gives the measurements behind it."""
    members = _check_group(ctx, group)
    if ctx.windows_are_fast:
        two_cores_stream = len(members) == 2 and tensor.numel() * tensor.itemsize >= _STREAM_BYTES
        return "ring" if two_cores_stream else "shared"
    hosts = {ctx.hosts[rank] for rank in members}
    if 1 < len(hosts) < len(members):
        return "hierarchical"
    return choose_schedule(len(members), tensor.numel() * tensor.itemsize)


def choose_schedule(ranks: int, nbytes: int) -> str:
    """The quickest schedule on a network of even links.

    For powers of two halving-doubling has the ring's bytes in fewer messages. For other numbers it folds ranks, which
    costs another 2 n b; the ring's latencies cost 2 p a. They are equal where n / p is a link's latency times its
    bandwidth, for which 64 KiB (50 us at 10 Gbit/s) stands here.
    """
    if nbytes <= _SMALL_BYTES:
        return "recursive-doubling"
    power_of_two = ranks & (ranks - 1) == 0
    return "halving-doubling" if power_of_two or nbytes <= ranks * _LINK_BYTES else "ring"


def own_chunk(ctx: Context, tensor: Tensor, group: Sequence[int] | None = None) -> Tensor:
    """This rank's chunk of a flat tensor: as many chunks as the group has ranks, nearly equal."""
    members = _check_group(ctx, group)
    bounds = chunk_bounds(tensor.numel(), len(members))
    position = members.index(ctx.rank)
    return tensor.view(-1)[bounds[position] : bounds[position + 1]]


async def gradient_norm(ctx: Context, shard: slice, group: Sequence[int]) -> float | None:
    """The gradient's global norm, of which this rank knows one shard's part. None where the task does not clip."""
    if not ctx.clips:
        return None
    part = ctx.gradient[shard].double()
    square = (part @ part).reshape(1)
    await _run(ctx, "all-reduce", "ring", square, group)
    return None if square.is_meta else math.sqrt(square.item())


async def _run(
    ctx: Context,
    goal: str,
    algorithm: str,
    tensor: Tensor,
    group: Sequence[int] | None,
    *,
    root: int | None = None,
    op: Operation = "sum",
) -> None:
    members = _check_group(ctx, group)
    if algorithm not in COLLECTIVES[goal]:
        raise UnknownNameError("algorithm", algorithm, COLLECTIVES[goal])
    hosts = tuple(ctx.hosts[rank] for rank in members) if algorithm == "hierarchical" else None
    place = None if root is None else _position(root, members)
    collective = Collective(goal, algorithm, len(members), place, hosts)
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.reshape(-1)
    combine: Combine = "sum" if _check_op(op) == "mean" else op  # type: ignore[assignment]
    await ctx.execute(collective, members, flat, combine=combine, tag=_tag(ctx, members))
    if op == "mean" and (root is None or ctx.rank == root):
        _divide(flat, len(members))
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


async def _all_reduce_shared(ctx: Context, tensor: Tensor, group: Sequence[int], op: Operation) -> None:
    """Through a window: each rank combines one shard of all tensors, in the ring's order, and all read the result."""
    size, length = len(group), tensor.numel()
    combine: Combine = "sum" if _check_op(op) == "mean" else op  # type: ignore[assignment]
    flat = tensor.reshape(-1)
    window = ctx.window(f"all-reduce-{length}-{tensor.dtype}", group, rows=size + 1, like=flat)
    position = group.index(ctx.rank)
    bounds = chunk_bounds(length, size)
    shard = slice(bounds[position], bounds[position + 1])
    order = [*range(position + 1, size), *range(position + 1)]
    window.tensor[position].copy_(flat)
    await window.barrier()
    await window.reduce(shard, order, into=window.tensor[size, shard], combine=combine)
    await window.barrier()
    tensor.copy_(window.tensor[size].view(tensor.shape))
    if op == "mean":
        _divide(tensor, size)


def _divide(tensor: Tensor, size: int) -> None:
    if not tensor.is_floating_point():
        raise ConfigurationError("op", "must not be mean for whole numbers", str(tensor.dtype), "use sum")
    tensor.div_(size)


def _check_op(op: str) -> str:
    if op not in OPERATIONS:
        raise UnknownNameError("op", op, OPERATIONS)
    return op


def _check_group(ctx: Context, group: Sequence[int] | None) -> Sequence[int]:
    members = ctx.workers if group is None else group
    if (
        isinstance(members, range) and ctx.rank in members
    ):  # the usual case, and one that needs no look at each rank
        return members
    return _checked(tuple(members), ctx.rank, len(ctx.peers))


@lru_cache(maxsize=4096)
def _checked(group: tuple[int, ...], rank: int, ranks: int) -> tuple[int, ...]:
    if len(set(group)) != len(group):
        raise ConfigurationError("group", "must name each rank once", group)
    outside = [member for member in group if not 0 <= member < ranks]
    if outside:
        raise ConfigurationError("group", f"must name ranks 0 to {ranks - 1}", outside[0])
    if rank not in group:
        raise ConfigurationError("group", f"must contain the rank that calls, {rank}", group)
    return group


def _position(root: int, group: Sequence[int]) -> int:
    if root not in group:
        raise ConfigurationError("root", f"must be a rank of the group {tuple(group)[:20]}", root)
    return group.index(root)


def _tag(ctx: Context, group: Sequence[int]) -> int:
    """A tag of its own for each collective, the same on every rank: several may be under way at once."""
    number = _range_number(group) if isinstance(group, range) else _group_number(tuple(group))
    return _COLLECTIVE_TAG | number << 16 | ctx.count_collective(number)


@lru_cache(maxsize=1024)
def _range_number(group: range) -> int:
    return _group_number(tuple(group))


@lru_cache(maxsize=1024)
def _group_number(group: tuple[int, ...]) -> int:
    return zlib.crc32(repr(group).encode()) & 0x7FFF
