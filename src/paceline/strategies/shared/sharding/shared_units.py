"""A model sharded among all ranks, in units: a rank has all parameters of a unit only during its computation."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.context import Batch, Context, Handle, Net, Segment, Shards, UnitEvent
from paceline.strategies.shared.sharding.agreement import agreement_on
from paceline.strategies.shared.sharding.exchange import Exchange

_FEW = 5
"""Minimum number of segments for exchanges that overlap with backward passes. With fewer segments, a third unit in
memory would be a large part of the model.
"""


class SharedUnits:
    """Computes batches, and exchanges units between two computations and beside them.

    During a computation, the gradient of the previous one is reduced, and then the parameters of the next one are
    gathered. These two exchanges run one after the other, so that a rank has at most three units (gradients or
    parameters) in memory at a time.
    """

    def __init__(
        self,
        ctx: Context,
        net: Net,
        segments: Sequence[Segment],
        shards: Shards,
        exchange: Exchange,
        *,
        frees_parameters: bool,
    ) -> None:
        self._ctx = ctx
        self._shards = shards
        self._exchange = exchange
        self._frees = frees_parameters
        self._agreement = agreement_on(ctx, net, shards, in_step=not segments[0].is_block)
        self._is_tight = frees_parameters and len(segments) < _FEW
        self._here: set[int] = set()
        self._gathering: set[int] = set()  # must not be freed
        self._beside: Handle[bool] | None = None

    async def compute(self, batch: Batch, microbatches: int | None) -> None:
        """Compute the gradient of a batch: this rank's shard of each unit, summed over all ranks."""
        widest = self._ctx.batch_of(0, batch.step).count
        with self._shards.passes(batch, microbatches, widest=widest) as events:
            async for event in events:
                self._free_all_but([*event.needed, *event.following])
                await self._end_beside()
                if event.is_last:
                    self._free_all_but(())  # free units that were prefetched but not used
                    await self._finish(event)
                else:
                    await self._prepare(event)

    async def _prepare(self, event: UnitEvent) -> None:
        """Gather the units of the next computation, and start the exchanges that overlap with it."""
        completed, following = event.completed, event.following
        if self._is_tight and event.is_backward:
            await self._exchange_in_turn(completed, ())
            completed = following = ()
        if self._exchange.prefetches:
            if missing := self._missing(event.needed):
                await self._exchange_in_turn(completed, missing)
                completed = ()
            following = self._missing(following)
        else:
            following = ()
        if completed or following:
            self._beside = self._ctx.start(self._exchange_in_turn(completed, following))
        for unit in self._missing(event.needed):  # read from shared memory, without waiting for other ranks
            await self._gather(unit)

    async def _finish(self, event: UnitEvent) -> None:
        """Exchange until no rank has anything left in this micro-batch."""
        completed = event.completed
        while not await self._exchange_in_turn(completed, (), ends=True):
            completed = ()

    async def _exchange_in_turn(
        self, completed: Sequence[int], wanted: Sequence[int], *, ends: bool = False
    ) -> bool:
        """Run exchanges one after the other, in the same order on all ranks. No other exchange runs meanwhile.

        Return whether they are the last ones of the micro-batch.
        """
        exchanges = await self._agreement.on(completed, wanted, ends=ends)
        for unit in exchanges.scattered:
            await self._exchange.scatter(unit)
        for unit in exchanges.gathered:
            stays = unit in self._here or unit in wanted
            await self._gather(unit)
            if not stays:  # another rank needs this unit
                self._free(unit)
        return exchanges.are_last

    async def _end_beside(self) -> None:
        if self._beside is not None:
            await self._beside
            self._beside = None

    # Units in memory

    async def gather_all(self, *, keeps: bool) -> None:
        """Take part in gathering all parameters. With `keeps` this rank keeps them."""
        for unit in self._shards.units if self._frees else ():
            await self._exchange.gather(unit.number)
            if not keeps:
                self._shards.release(unit.number)

    def _missing(self, units: Sequence[int]) -> list[int]:
        return [unit for unit in units if unit not in self._here]

    async def _gather(self, unit: int) -> None:
        self._gathering.add(unit)
        await self._exchange.gather(unit)
        self._gathering.discard(unit)
        self._here.add(unit)

    def _free_all_but(self, units: Sequence[int]) -> None:
        for unit in self._here.difference(units, self._gathering):
            self._free(unit)

    def _free(self, unit: int) -> None:
        self._shards.release(unit)
        self._here.discard(unit)
