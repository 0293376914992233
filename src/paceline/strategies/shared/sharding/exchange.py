"""Exchange of sharded units between ranks: by messages, or through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.collectives import all_gather, reduce_own_shard, reduce_scatter
from paceline.collectives.coded import coded
from paceline.collectives.tensors import overwrite
from paceline.context import Context, Net, Shards

if TYPE_CHECKING:
    from torch import Tensor


class Exchange(Protocol):
    """Exchange of the parameters and gradients of sharded units."""

    @property
    def prefetches(self) -> bool:
        """Whether to gather the units of the next pass while the current one is computed."""
        ...

    async def gather(self, unit: int) -> None:
        """Gather all parameters of a unit."""
        ...

    async def scatter(self, unit: int) -> None:
        """Reduce the gradient of a unit over all ranks, and keep this rank's shard of it."""
        ...

    async def begin(self) -> None:
        """Prepare the exchange. Call it before the first step."""
        ...

    async def updated(self) -> None:
        """Publish this rank's updated shard, after an update. If all ranks keep all parameters, gather them."""
        ...


class ByMessages:
    """Exchange by messages: a ring all-gather and reduce-scatter for each unit."""

    prefetches = True

    def __init__(self, net: Net, gradients: Net, shards: Shards, *, frees_parameters: bool) -> None:
        """Create the exchange. `gradients` is the net that carries gradients."""
        self._net, self._gradients = net, gradients
        self._shards = shards
        self._parts = {unit.number: unit.parts for unit in shards.units}
        self._frees = frees_parameters

    async def begin(self) -> None:
        pass

    async def gather(self, unit: int) -> None:
        with self._shards.gather(unit) as whole:
            if len(whole):  # a segment without parameters has an empty unit
                await all_gather(self._net, whole, parts=self._parts[unit])

    async def scatter(self, unit: int) -> None:
        with self._shards.gradient(unit) as (whole, own):
            if len(whole):
                overwrite(own, await reduce_scatter(self._gradients, whole, parts=self._parts[unit]))

    async def updated(self) -> None:
        if not self._frees:
            for unit in self._parts:
                await self.gather(unit)


class ByMemory:
    """Exchange through windows.

    If ranks free their parameters, each can read the others' shards. Otherwise the window has one copy of all
    parameters.
    """

    prefetches = False  # the other ranks' shards are read directly, without waiting

    def __init__(self, ctx: Context, net: Net, shards: Shards, *, frees_parameters: bool) -> None:
        self._net = net
        self._shards = shards
        self._parts = {unit.number: unit.parts for unit in shards.units}
        self._frees = frees_parameters
        self._columns = {rank: _columns(shards, rank) for rank in range(net.size)}
        own, model = net.rank if frees_parameters else 0, ctx.model
        length = max(_length(columns) for columns in self._columns.values()) if frees_parameters else None
        like = model.parameters if length is None else _like(model.gradient, length)
        self._parameters = net.window("shards", rows=net.size if frees_parameters else 1, like=like)
        row = self._parameters.tensor[own, : model.parameters.numel()]
        if own == net.rank:
            row.copy_(model.parameters)
        model.place(parameters=row)
        longest = max((unit.parts[-1].stop for unit in shards.units), default=0)
        self._gradients = net.window("gradients", rows=net.size, like=_like(model.gradient, longest))

    async def begin(self) -> None:
        """Wait until all ranks have written their parameters."""
        await self._parameters.barrier()

    async def gather(self, unit: int) -> None:
        with self._shards.gather(unit) as whole:
            for rank, part in enumerate(self._parts[unit]):
                if rank != self._net.rank and part.start < part.stop:
                    await self._parameters.reduce(self._columns[rank][unit], [rank], into=whole[part])

    async def scatter(self, unit: int) -> None:
        parts = self._parts[unit]
        await self._gradients.barrier()  # wait until all ranks have read this rank's previous gradient
        row = self._gradients.tensor[self._net.rank, : parts[-1].stop]
        with self._shards.gradient(unit, into=row) as (_, own):
            await reduce_own_shard(self._net, self._gradients, parts[self._net.rank], into=own)

    async def updated(self) -> None:
        await self._parameters.barrier()


def _columns(shards: Shards, rank: int) -> dict[int, slice]:
    """Return the position of a rank's shard of each unit, if its shards are stored one after the other."""
    columns, at = {}, 0
    for unit in shards.units:
        part = unit.parts[rank]
        columns[unit.number] = slice(at, at + part.stop - part.start)
        at = columns[unit.number].stop
    return columns


def _length(columns: dict[int, slice]) -> int:
    return max((each.stop for each in columns.values()), default=0)


def _like(tensor: Tensor, length: int) -> Tensor:
    """Return a tensor of that length with the same dtype and device that takes no memory."""
    return tensor.new_empty(1).expand(length)


def exchange_on(
    ctx: Context, net: Net, shards: Shards, *, frees_parameters: bool, codec: str = "none"
) -> Exchange:
    """Return the fastest exchange between these ranks. `codec` encodes messages with gradients."""
    if net.shares_memory:
        return ByMemory(ctx, net, shards, frees_parameters=frees_parameters)
    return ByMessages(net, coded(ctx, codec, net), shards, frees_parameters=frees_parameters)
