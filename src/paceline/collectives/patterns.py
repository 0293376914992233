"""Communication patterns for strategies and role programs. Each is a schedule run on a net.

Every rank of the net calls the same pattern with tensors of the same length and dtype. A context instead of a net
stands for its workers. `group` selects some of the ranks. Roots are ranks of the net, too. Use `ctx.start(…)` to run a
pattern concurrently with other work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from paceline.collectives.tensors import number_in, square_of
from paceline.context import ANY, Combine, Context, Net, Window
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.collectives import ALL_REDUCE, COLLECTIVES
from paceline.schedules.collectives.collective import Collective, uneven_bounds
from paceline.schedules.collectives.steps import chunk_bounds

if TYPE_CHECKING:
    from torch import Tensor

ALGORITHMS = ("auto", *ALL_REDUCE, "shared", "native")
"""Algorithms of `all_reduce`: a schedule, shared memory, or torch.distributed."""

OPERATIONS = ("sum", "mean", "max", "min")
Operation = Literal["sum", "mean", "max", "min"]

Where = Net | Context
"""The participating ranks: all ranks of a net, or the workers of a context."""

_PULL_TAG = 0x7FFF_FFFF
_SMALL_BYTES = 32 * 2**10
_STREAM_BYTES = 2**20
_LINK_BYTES = 64 * 2**10
_MANY_RANKS = 64  # above this the ring's latency, 2 (p - 1) a, outweighs the benefit of equal bits


async def push(where: Where, tensor: Tensor, to: int) -> None:
    """Send a tensor to a rank, which receives it with `recv`."""
    await _net(where).send(to, tensor)


async def pull(where: Where, into: Tensor, source: int) -> None:
    """Request a tensor from a rank, and wait for it. The other rank sends the tensor with `answer`."""
    net = _net(where)
    await net.send(source, into[:0], tag=_PULL_TAG)
    await net.recv(source, into, tag=_PULL_TAG)


async def answer(where: Where, tensor: Tensor, to: int = ANY) -> int:
    """Send a tensor to the next rank that pulls, or to rank `to`. Return the rank."""
    net = _net(where)
    request = await net.recv(to, tag=_PULL_TAG)
    await net.send(request.source, tensor, tag=_PULL_TAG)
    return request.source


async def barrier(where: Where, group: Sequence[int] | None = None) -> None:
    """Wait until every rank of the group has called this."""
    import torch

    await _run(_net(where, group), "barrier", "dissemination", torch.empty(0))


async def broadcast(
    where: Where, tensor: Tensor, root: int, group: Sequence[int] | None = None, algorithm: str = "tree"
) -> None:
    """Overwrite every rank's tensor with the root's."""
    net, place = _net(where, group), _position(root, group)
    await _run(net, "broadcast", algorithm, tensor, root=place)


async def reduce(
    where: Where,
    tensor: Tensor,
    root: int,
    group: Sequence[int] | None = None,
    op: Operation = "sum",
    algorithm: str = "tree",
) -> None:
    """Reduce every rank's tensor onto the root. The tensors of the other ranks are overwritten."""
    net, place = _net(where, group), _position(root, group)
    await _run(net, "reduce", algorithm, tensor, root=place, op=op)


async def scatter(where: Where, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Tensor:
    """Send each rank its own chunk of the root's tensor. Return this rank's chunk, a view."""
    net, place = _net(where, group), _position(root, group)
    await _run(net, "scatter", "flat", tensor, root=place)
    return own_chunk(net, tensor)


async def gather(where: Where, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> None:
    """Copy each rank's own chunk of the tensor into the root's tensor."""
    net, place = _net(where, group), _position(root, group)
    await _run(net, "gather", "flat", tensor, root=place)


async def all_gather(
    where: Where, tensor: Tensor, group: Sequence[int] | None = None, parts: Sequence[slice] | None = None
) -> None:
    """Copy each rank's own chunk of the tensor into every rank's tensor.

    `parts` gives each rank's part, if these are not the default chunks. Parts are contiguous and of any length.
    """
    await _run(_net(where, group), "all-gather", "ring", tensor, parts=parts)


async def reduce_scatter(
    where: Where,
    tensor: Tensor,
    group: Sequence[int] | None = None,
    op: Operation = "sum",
    parts: Sequence[slice] | None = None,
) -> Tensor:
    """Reduce each chunk onto the rank that owns it. Return this rank's chunk, a view.

    `parts` is as in `all_gather`. Parts of any length are reduced in the ring's order.
    """
    net = _net(where, group)
    await _run(net, "reduce-scatter", "ring", tensor, op=op, parts=parts)
    return own_chunk(net, tensor) if parts is None else tensor.view(-1)[parts[net.rank]]


async def all_to_all(where: Where, tensor: Tensor, group: Sequence[int] | None = None) -> None:
    """Exchange chunks: rank i's chunk j becomes rank j's chunk i. The length must divide by the group's size."""
    size = _net(where, group).size
    if tensor.numel() % size:
        raise ConfigurationError(
            "tensor", f"must have a length that divides by the group's size {size}", tensor.numel(), "pad it"
        )
    await _run(_net(where, group), "all-to-all", "pairwise", tensor)


async def all_reduce(
    where: Where,
    tensor: Tensor,
    algorithm: str = "auto",
    *,
    group: Sequence[int] | None = None,
    op: Operation = "sum",
) -> None:
    """Reduce every rank's tensor, and leave the result on every rank."""
    if algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    net = _net(where, group)
    if algorithm == "auto":
        algorithm = choose_algorithm(net, tensor.numel() * tensor.itemsize)
    if algorithm == "shared":
        await _all_reduce_shared(net, tensor, op)
    else:
        await _run(net, "all-reduce", algorithm, tensor, op=op)


def choose_algorithm(net: Net, nbytes: int, *, for_run: bool = False) -> str:
    """Return the algorithm that `auto` selects for `nbytes` bytes. docs/decisions/0004-auto.md has the measurements.

    With `for_run` the choice is for all gradients of a run. They can be stored in shared memory, which saves copies.
    Without shared memory the ring is chosen, because its sums have the same bits, until latency dominates the ring.
    The choice is the same in every backend.
    """
    if net.shares_memory:
        two_cores_stream = net.size == 2 and nbytes >= _STREAM_BYTES
        return "ring" if two_cores_stream and not for_run else "shared"
    if 1 < len(set(net.hosts)) < net.size:
        return "hierarchical"
    if for_run and net.size <= _MANY_RANKS:
        return "ring"
    return choose_schedule(net.size, nbytes)


def choose_schedule(ranks: int, nbytes: int) -> str:
    """Return the fastest schedule on a network with uniform links.

    If the number of ranks is a power of two, halving-doubling sends as many bytes as the ring in fewer messages.
    For other sizes halving-doubling folds ranks, which costs another 2 n b, and the ring's latency costs 2 p a.
    These costs are equal if n / p is a link's latency times its bandwidth. This code assumes 64 KiB for that
    product (50 us at 10 Gbit/s).
    """
    if nbytes <= _SMALL_BYTES:
        return "recursive-doubling"
    power_of_two = ranks & (ranks - 1) == 0
    return "halving-doubling" if power_of_two or nbytes <= ranks * _LINK_BYTES else "ring"


def own_chunk(net: Net, tensor: Tensor) -> Tensor:
    """Return this rank's chunk of a flat tensor. There is one chunk per rank, nearly equal in size."""
    bounds = chunk_bounds(tensor.numel(), net.size)
    return tensor.view(-1)[bounds[net.rank] : bounds[net.rank + 1]]


async def gradient_norm(net: Net, part: Tensor) -> float:
    """Return the global gradient norm. `part` is this rank's shard of the gradient."""
    return await norm_of_squares(net, square_of(part))


async def norm_of_squares(net: Net, square: Tensor) -> float:
    """Return the global norm, given the sum of squares of this rank's shard. `square` is overwritten."""
    await _run(net, "all-reduce", "ring", square)
    return math.sqrt(number_in(square))


async def _run(
    net: Net,
    goal: str,
    algorithm: str,
    tensor: Tensor,
    *,
    root: int | None = None,
    op: Operation = "sum",
    parts: Sequence[slice] | None = None,
) -> None:
    if algorithm not in COLLECTIVES[goal] and algorithm != "native":
        raise UnknownNameError("algorithm", algorithm, COLLECTIVES[goal])
    if root is not None and not 0 <= root < net.size:
        raise ConfigurationError("root", f"must be a rank of the net, 0 to {net.size - 1}", root)
    hosts = tuple(net.hosts) if algorithm == "hierarchical" else None
    bounds = None if parts is None else uneven_bounds(parts, tensor.numel(), net.size)
    collective = Collective(goal, algorithm, net.size, root, hosts, bounds)
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.reshape(-1)
    await net.execute(collective, flat, combine=_combine_of(op))
    if op == "mean" and (root is None or net.rank == root):
        _divide(flat, net.size)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


async def _all_reduce_shared(net: Net, tensor: Tensor, op: Operation) -> None:
    """All-reduce through a window: each rank reduces one shard of all tensors, and all read the result."""
    size, length = net.size, tensor.numel()
    flat = tensor.reshape(-1)
    window = net.window(f"all-reduce-{length}-{tensor.dtype}", rows=size + 1, like=flat)
    bounds = chunk_bounds(length, size)
    shard = slice(bounds[net.rank], bounds[net.rank + 1])
    window.tensor[net.rank].copy_(flat)
    await reduce_own_shard(net, window, shard, into=window.tensor[size, shard], combine=_combine_of(op))
    await window.barrier()
    tensor.copy_(window.tensor[size].view(tensor.shape))
    if op == "mean":
        _divide(tensor, size)


async def reduce_own_shard(
    net: Net, window: Window, shard: slice, into: Tensor, combine: Combine = "sum"
) -> None:
    """Wait until all ranks have written their rows of a window, then reduce one shard of them in the ring's order.

    That order ends at the shard's owner. So shared memory gives the same bits as the ring.
    """
    await window.barrier()
    order = [*range(net.rank + 1, net.size), *range(net.rank + 1)]
    await window.reduce(shard, order, into=into, combine=combine)


def _combine_of(op: str) -> Combine:
    if op not in OPERATIONS:
        raise UnknownNameError("op", op, OPERATIONS)
    return "sum" if op == "mean" else op  # type: ignore[return-value]


def _divide(tensor: Tensor, size: int) -> None:
    if not tensor.is_floating_point():
        raise ConfigurationError("op", "must not be mean for whole numbers", str(tensor.dtype), "use sum")
    tensor.div_(size)


def _net(where: Where, group: Sequence[int] | None = None) -> Net:
    """Return the net of the participating ranks."""
    net: Net = getattr(where, "net", where)  # type: ignore[arg-type]
    if group is not None:
        return net.split(group)
    workers: Sequence[int] | None = getattr(where, "workers", None)
    return net if workers is None or len(workers) == net.size else net.split(workers)


def _position(root: int, group: Sequence[int] | None) -> int:
    if group is None:
        return root
    if root not in group:
        raise ConfigurationError("root", f"must be a rank of the group {tuple(group)[:20]}", root)
    return group.index(root)
