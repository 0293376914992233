"""The data axis of a mesh: ranks that hold the same segments and compute different samples.

Each of them holds all state of its segments. With ZeRO, each holds only a shard of the optimizer state (stage 1), and
also of the gradients (stage 2) and of the parameters (stage 3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from paceline.collectives import all_gather, all_reduce, choose_algorithm, reduce_scatter
from paceline.collectives.coded import coded
from paceline.context import Context, Net
from paceline.strategies.shared.codec import algorithm_for, gradient_codec
from paceline.strategies.shared.sharding.exchange import Exchange


class DataAxis(Protocol):
    """The update by ranks that hold the same segments."""

    @property
    def codec(self) -> str:
        """Encoding of the gradients that these ranks sum."""
        ...

    @property
    def shared_by(self) -> Net | None:
        """Ranks that each count their own shard in the gradient norm; None if each rank has the whole gradient."""
        ...

    @property
    def own(self) -> slice:
        """This rank's shard of `ctx.model.gradient`."""
        ...

    async def sum(self) -> None:
        """Sum the gradients over these ranks."""
        ...

    async def apply(self, norm: Callable[[], Awaitable[float]], split: Sequence[Net]) -> None:
        """Update the parameters, so that every rank has the new ones.

        `norm` and `split` are as in `ctx.model.apply`.
        """
        ...


class Copies:
    """Replicas: each rank holds all state. Any all-reduce algorithm sums the gradients."""

    shared_by = None

    def __init__(
        self, ctx: Context, net: Net, algorithm: str, codec: str = "none", *, is_split: bool = False
    ) -> None:
        """With `is_split`, ranks of other stages or of a tensor group hold the same parameters, and must get equal
        sums. They would round them differently, so the task's precision selects no codec.
        """
        self._model = ctx.model
        self.codec = codec
        if algorithm == "auto":
            gradient = ctx.model.gradient
            chosen = choose_algorithm(net, gradient.numel() * gradient.itemsize, for_run=True)
            algorithm = algorithm_for(codec, chosen)
        self._algorithm = algorithm
        self._net = coded(ctx, codec if is_split else gradient_codec(ctx, codec, algorithm, net=net), net)

    @property
    def own(self) -> slice:
        return slice(0, self._model.gradient.numel())

    async def sum(self) -> None:
        if self._net.size > 1 and self._model.gradient.numel():
            await all_reduce(self._net, self._model.gradient, self._algorithm)

    async def apply(self, norm: Callable[[], Awaitable[float]], split: Sequence[Net]) -> None:
        await self._model.apply(norm=norm, split=split)


class SharedUpdates:
    """ZeRO stage 1: each rank sums and updates one shard, and sends it to the others."""

    codec = "none"

    def __init__(self, ctx: Context, net: Net) -> None:
        self._model = ctx.model
        self.shared_by = net
        self._shards = ctx.model.shards(net.size)
        self.own = self._shards[net.rank]
        # The memory stays the same. The call declares that other ranks write to it. A moving average then includes
        # all shards.
        ctx.model.place(parameters=ctx.model.parameters)

    async def sum(self) -> None:
        await reduce_scatter(self.shared_by, self._model.gradient, parts=self._shards)

    async def apply(self, norm: Callable[[], Awaitable[float]], split: Sequence[Net]) -> None:
        await self._model.apply(self.own, norm=norm, split=split)
        await all_gather(self.shared_by, self._model.parameters, parts=self._shards)


class ShardedMeshUpdate:
    """ZeRO stages 2 and 3: each rank holds a shard of every segment. Gradients are summed during the backward pass."""

    codec = "none"

    def __init__(self, ctx: Context, net: Net, exchange: Exchange) -> None:
        self._model = ctx.model
        self.shared_by = net
        self._exchange = exchange

    @property
    def own(self) -> slice:
        return slice(0, self._model.gradient.numel())

    async def sum(self) -> None:
        pass

    async def apply(self, norm: Callable[[], Awaitable[float]], split: Sequence[Net]) -> None:
        await self._model.apply(norm=norm, split=split)
        await self._exchange.updated()
