"""How ranks that share units get what the others have: by messages, or through memory that all of them see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.collectives import all_gather, reduce_own_shard, reduce_scatter
from paceline.context import Context, Net, Shards

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ByMemory", "ByMessages", "Exchange", "exchange_on"]


class Exchange(Protocol):
    """What ranks do with a unit of parameters that they share."""

    @property
    def foresees(self) -> bool:
        """Whether to gather what the next pass needs while one is computed."""
        ...

    async def gather(self, unit: int) -> None:
        """Have all parameters of a unit."""
        ...

    async def scatter(self, unit: int) -> None:
        """Sum the gradient of a unit, and keep this rank's part of it."""
        ...

    async def begin(self) -> None:
        """Before the first step."""
        ...

    async def updated(self) -> None:
        """Each rank has updated its part: let the others see it, where all keep all parameters."""
        ...


class ByMessages:
    """A ring for each unit: all-gather and reduce-scatter."""

    foresees = True

    def __init__(self, net: Net, shards: Shards, *, sheds: bool) -> None:
        self._net = net
        self._shards = shards
        self._sheds = sheds

    async def begin(self) -> None:
        pass

    async def gather(self, unit: int) -> None:
        await all_gather(self._net, self._shards.gather(unit), parts=self._shards.parts(unit))
        self._shards.ready(unit)

    async def scatter(self, unit: int) -> None:
        gradient = self._shards.gradient(unit)
        own = await reduce_scatter(self._net, gradient, parts=self._shards.parts(unit))
        self._shards.keep(unit, own)

    async def updated(self) -> None:
        if not self._sheds:
            for unit in self._shards.units:
                await self.gather(unit)


class ByMemory:
    """Through windows. Where ranks shed their parameters, each can read the others' parts; else all lie there once."""

    foresees = False  # what others have is read at once, and nobody waits for it

    def __init__(self, ctx: Context, net: Net, shards: Shards, *, sheds: bool) -> None:
        self._net = net
        self._shards = shards
        self._sheds = sheds
        self._columns = {rank: _columns(shards, rank) for rank in range(net.size)}
        own, model = net.rank if sheds else 0, ctx.model
        length = max(_length(columns) for columns in self._columns.values()) if sheds else None
        like = model.parameters if length is None else _like(model.gradient, length)
        self._parameters = net.window("shards", rows=net.size if sheds else 1, like=like)
        row = self._parameters.tensor[own, : model.parameters.numel()]
        if own == net.rank:
            row.copy_(model.parameters)
        model.place(parameters=row)
        longest = max((shards.parts(unit)[-1].stop for unit in shards.units), default=0)
        self._gradients = net.window("gradients", rows=net.size, like=_like(model.gradient, longest))

    async def begin(self) -> None:
        """Wait until everybody's parameters lie there."""
        await self._parameters.barrier()

    async def gather(self, unit: int) -> None:
        whole = self._shards.gather(unit)
        for rank, part in enumerate(self._shards.parts(unit)):
            if rank != self._net.rank and part.start < part.stop:
                await self._parameters.reduce(self._columns[rank][unit], [rank], into=whole[part])
        self._shards.ready(unit)

    async def scatter(self, unit: int) -> None:
        parts = self._shards.parts(unit)
        await self._gradients.barrier()  # until all have read what this rank wrote last
        row = self._gradients.tensor[self._net.rank, : parts[-1].stop]
        written = self._shards.gradient(unit, into=row)[parts[self._net.rank]]
        space = self._shards.space(unit)
        own = written if space is None else space
        await reduce_own_shard(self._net, self._gradients, parts[self._net.rank], into=own)
        self._shards.keep(unit, own)

    async def updated(self) -> None:
        await self._parameters.barrier()


def _columns(shards: Shards, rank: int) -> dict[int, slice]:
    """Where a rank's part of each unit lies, when its parts lie one after the other."""
    columns, at = {}, 0
    for unit in shards.units:
        part = shards.parts(unit)[rank]
        columns[unit] = slice(at, at + part.stop - part.start)
        at = columns[unit].stop
    return columns


def _length(columns: dict[int, slice]) -> int:
    return max((each.stop for each in columns.values()), default=0)


def _like(tensor: Tensor, length: int) -> Tensor:
    """A tensor of that length, of the same kind, that takes no memory."""
    return tensor.new_empty(1).expand(length)


def exchange_on(ctx: Context, net: Net, shards: Shards, *, sheds: bool) -> Exchange:
    """The quickest way between these ranks."""
    if net.shares_memory:
        return ByMemory(ctx, net, shards, sheds=sheds)
    return ByMessages(net, shards, sheds=sheds)
