"""The data axis of a mesh: ranks that hold the same pieces, and compute other samples.

They all have everything of their pieces, or share what the optimizer remembers (ZeRO's stage 1), or gradients and
parameters too (stages 2 and 3).
"""

from __future__ import annotations

from typing import Protocol

from paceline.collectives import all_gather, all_reduce, choose_algorithm, reduce_scatter
from paceline.context import Context, Net
from paceline.strategies.sharding.exchange import Exchange

__all__ = ["Copies", "DataAxis", "SharedPieces", "SharedUpdates"]


class DataAxis(Protocol):
    """What ranks that hold the same pieces do together in an update."""

    @property
    def shared_by(self) -> Net | None:
        """The ranks of which each counts its own part in the norm of the gradient. None: each has all of it."""
        ...

    @property
    def own(self) -> slice:
        """This rank's part of `ctx.model.gradient`."""
        ...

    async def sum(self) -> None:
        """Sum the gradients of all of them."""
        ...

    async def apply(self, norm: float | None) -> None:
        """Update, so that every rank has the new parameters."""
        ...


class Copies:
    """Each has all of it. Gradients are summed by any algorithm of all-reduce."""

    shared_by = None

    def __init__(self, ctx: Context, net: Net, algorithm: str) -> None:
        self._model = ctx.model
        self._net = net
        if algorithm == "auto":
            gradient = ctx.model.gradient
            algorithm = choose_algorithm(net, gradient.numel() * gradient.itemsize, for_run=True)
        self._algorithm = algorithm

    @property
    def own(self) -> slice:
        return slice(0, self._model.gradient.numel())

    async def sum(self) -> None:
        if self._net.size > 1 and self._model.gradient.numel():
            await all_reduce(self._net, self._model.gradient, self._algorithm)

    async def apply(self, norm: float | None) -> None:
        await self._model.apply(norm=norm)


class SharedUpdates:
    """Each sums and updates a shard, and sends it to the others."""

    def __init__(self, ctx: Context, net: Net) -> None:
        self._model = ctx.model
        self.shared_by = net
        self._shards = ctx.model.shards(net.size)
        self.own = self._shards[net.rank]
        # They stay where they are, but others write there too: so a moving average sees all of them.
        ctx.model.place(parameters=ctx.model.parameters)

    async def sum(self) -> None:
        await reduce_scatter(self.shared_by, self._model.gradient, parts=self._shards)

    async def apply(self, norm: float | None) -> None:
        await self._model.apply(self.own, norm=norm)
        await all_gather(self.shared_by, self._model.parameters, parts=self._shards)


class SharedPieces:
    """Each holds a part of every segment: their gradients are summed segment by segment, as they are computed."""

    def __init__(self, ctx: Context, net: Net, exchange: Exchange) -> None:
        self._model = ctx.model
        self.shared_by = net
        self._exchange = exchange

    @property
    def own(self) -> slice:
        return slice(0, self._model.gradient.numel())

    async def sum(self) -> None:
        pass

    async def apply(self, norm: float | None) -> None:
        await self._model.apply(norm=norm)
        await self._exchange.updated()
