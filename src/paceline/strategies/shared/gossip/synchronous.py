"""A peer of D-PSGD: in every step it averages with all its neighbours of that step.

The average is summed in the order of ranks. Its bits therefore do not depend on the backend, on the order of arrival
of messages, or on overlap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.collectives.tensors import overwrite, spare_like, weigh
from paceline.context import Batch, Context, Handle, Message
from paceline.errors import PeerLost
from paceline.schedules.topologies import Topology

if TYPE_CHECKING:
    from torch import Tensor

ORDERS = ("combine-then-adapt", "adapt-then-combine")

_PARAMETERS = 1  # message tag


@dataclass(frozen=True, slots=True)
class _Neighbourhood:
    """The neighbours of a peer in one step."""

    row: tuple[tuple[int, float], ...]
    """Weight of each peer in the average, including this one."""
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Synchronous:
    """The program of one peer."""

    def __init__(
        self,
        ctx: Context,
        topology: Topology,
        *,
        order: str,
        overlap: bool,
        consensus_every: int,
        evaluate_peers: bool,
    ) -> None:
        self._ctx = ctx
        self._topology = topology
        self._adapts_first = order == "adapt-then-combine"
        self._overlap = overlap
        self._consensus_every = consensus_every
        self._evaluate_peers = evaluate_peers
        self._neighbourhoods: dict[int, _Neighbourhood] = {}
        self._lost: set[int] = set()
        self._landings: list[Tensor] = []
        self._mixed = spare_like(ctx.model.parameters)

    async def run(self) -> None:
        every = self._consensus_every
        async for batch in self._ctx.batches():
            if self._adapts_first:
                await self._adapt_then_combine(batch)
            else:
                await self._combine_then_adapt(batch)
            is_due = every > 0 and (batch.step + 1) % every == 0
            await self._ctx.log.observe(batch.step, force=is_due, own_metric=self._evaluate_peers)

    async def _combine_then_adapt(self, batch: Batch) -> None:
        ctx = self._ctx
        if self._overlap:
            exchange = self._exchange(batch.step)
            await ctx.start(self._gradient_of(batch))
        else:
            await self._gradient_of(batch)
            exchange = self._exchange(batch.step)
        # The parameters may change only now: the gradient belongs to the old ones.
        await self._combine(batch.step, *exchange)
        await ctx.model.apply()

    async def _adapt_then_combine(self, batch: Batch) -> None:
        await self._gradient_of(batch)
        await self._ctx.model.apply()
        await self._combine(batch.step, *self._exchange(batch.step))

    def _gradient_of(self, batch: Batch) -> Awaitable[float]:
        """Compute the gradient of a slice, weighted so that the mean over peers is the gradient of the whole batch."""
        return self._ctx.model.compute(batch, weight=batch.weight * len(self._ctx.workers))

    def _neighbourhood(self, step: int) -> _Neighbourhood:
        place = step % self._topology.period
        if place not in self._neighbourhoods:
            rank, peers = self._ctx.rank, len(self._ctx.workers)
            # Each peer starts with the next higher rank, so that the peers do not all send to the same rank at the
            # same time.
            targets = sorted(self._topology.sends_to(rank, step), key=lambda peer: (peer - rank) % peers)
            self._neighbourhoods[place] = _Neighbourhood(
                self._topology.row(rank, step), self._topology.neighbours(rank, step), tuple(targets)
            )
        return self._neighbourhoods[place]

    def _exchange(self, step: int) -> tuple[list[_Receipt], list[Handle[None]]]:
        """Start sending to the neighbours of a step and receiving from them."""
        ctx, near = self._ctx, self._neighbourhood(step)
        receipts = [
            (peer, ctx.start(ctx.net.recv(peer, self._landing(place), tag=_PARAMETERS)))
            for place, peer in enumerate(near.sources)
            if peer not in self._lost
        ]
        sendings = [
            ctx.start(ctx.net.send(peer, ctx.model.parameters, tag=_PARAMETERS))
            for peer in near.targets
            if peer not in self._lost
        ]
        return receipts, sendings

    def _landing(self, place: int) -> Tensor:
        while len(self._landings) <= place:
            self._landings.append(spare_like(self._ctx.model.parameters))
        return self._landings[place]

    async def _combine(
        self, step: int, receipts: Sequence[_Receipt], sendings: Sequence[Handle[None]]
    ) -> None:
        """Wait for the exchange, and replace the parameters by the weighted average."""
        here = {self._ctx.rank: self._ctx.model.parameters}
        for peer, receipt in receipts:
            message = await self._unless_lost(receipt)
            if message is not None:
                here[peer] = message.tensor
        for sending in sendings:
            await self._unless_lost(sending)
        self._average(self._weigh(step, here))

    async def _unless_lost(self, handle: Handle[Any]) -> Any:
        try:
            return await handle
        except PeerLost as loss:
            if loss.rank not in self._lost:
                self._lost.add(loss.rank)
                self._ctx.log.note_lost(loss.rank)
            return None

    def _weigh(self, step: int, here: dict[int, Tensor]) -> list[tuple[Tensor, float]]:
        """Return the received parameters with their weights.

        Weights of missing peers are added to this peer's own.
        """
        row = self._neighbourhood(step).row
        missing = sum(weight for peer, weight in row if peer not in here)
        return [
            (here[peer], weight + missing if peer == self._ctx.rank else weight)
            for peer, weight in row
            if peer in here
        ]

    def _average(self, terms: Sequence[tuple[Tensor, float]]) -> None:
        if len(terms) > 1:
            weigh(self._mixed, terms)
            overwrite(self._ctx.model.parameters, self._mixed)


_Receipt = tuple[int, Handle[Message]]
