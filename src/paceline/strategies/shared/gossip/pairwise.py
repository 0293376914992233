"""A peer of AD-PSGD: it averages with one random neighbour after another while it computes gradients.

An exchange is one offer and one answer. Peer i sends its parameters, a. Peer j has parameters b when the offer
arrives. Peer j adds (a - b)/2 to its parameters and answers with b. When the answer arrives, peer i adds (b - a)/2.
The two changes are opposite. So the sum over all peers stays the same, even if gradients or other exchanges changed
i and j in between. There are no locks, and j answers immediately, even while it computes. So peers cannot deadlock on
any graph, odd rings included. The paper instead needs two kinds of peers, which exist on bipartite graphs only.

Two offers may cross: one from i to j and one from j to i. If both were answered, the two peers would swap their
parameters instead of averaging them, and might repeat that in every step. So each peer treats the other's offer as
the answer to its own: i adds (b - a)/2 and j adds (a - b)/2. Messages between two peers arrive in order, so both
detect the crossing: if the other peer had answered before its own offer, the answer would have arrived first.

A gradient is computed on a copy of the peer's parameters. The change of that copy by the optimizer is then added to
the peer's current parameters. A peer that has finished answers offers until all its neighbours have sent FAREWELL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.collectives.tensors import add, copy_of, overwrite
from paceline.context import ANY, Batch, Context, Handle, Message
from paceline.errors import Cancelled, ConfigurationError, DeadlineError, PeerLost
from paceline.schedules.topologies import Topology

if TYPE_CHECKING:
    from torch import Tensor

# Message tags.
_OFFER, _ANSWER, _FAREWELL = 1, 2, 3


@dataclass(frozen=True, slots=True)
class _Offer:
    """An offer that has not been answered yet."""

    to: int
    held: Tensor
    """The peer's parameters at the time of the offer."""
    answer: Handle[Message]


class Pairwise:
    """The program of one peer."""

    def __init__(
        self,
        ctx: Context,
        topology: Topology,
        *,
        overlap: bool,
        consensus_every: int,
        evaluate_peers: bool,
    ) -> None:
        _check(ctx)
        self._ctx = ctx
        self._overlap = overlap
        self._consensus_every = consensus_every
        self._evaluate_peers = evaluate_peers
        self._neighbours = list(topology.neighbours(ctx.rank))
        self._held = copy_of(ctx.model.parameters)
        self._offer: _Offer | None = None
        self._seen = ctx.model.version  # updates of all peers, at this peer's last update

    async def run(self) -> None:
        ctx = self._ctx
        await ctx.log.observe(parameters=self._held)
        answering = ctx.start(self._answer_offers())
        async for batch in ctx.batches(endless=True):
            if batch.count and not await self._step(batch):
                break
        await self._part()
        answering.cancel()
        overwrite(ctx.model.parameters, self._held)
        await ctx.log.observe(ctx.log.steps - 1, force=True, own_metric=self._evaluate_peers)

    async def _step(self, batch: Batch) -> bool:
        """Compute one gradient, make one exchange and one update. Return False if the run has all its updates."""
        ctx = self._ctx
        overwrite(ctx.model.parameters, self._held)
        gradient = ctx.start(ctx.model.compute(batch))
        if self._overlap:
            await self._exchange()
            loss = await gradient
        else:
            loss = await gradient
            await self._exchange()
        number = ctx.net.count()
        if number > ctx.log.steps:
            return False
        await self._update(batch, loss, number)
        return True

    async def _update(self, batch: Batch, loss: float, number: int) -> None:
        """Add the optimizer's step on the copy to this peer's parameters. `number` is the global update number."""
        ctx = self._ctx
        before = copy_of(ctx.model.parameters)
        await ctx.model.apply()
        add(self._held, ctx.model.parameters, minus=before)
        await ctx.log.observe(parameters=self._held)
        others, every = number - 1 - self._seen, self._consensus_every
        ctx.log.note_staleness(others)
        ctx.model.advance_schedule(others)
        force = every > 0 and number // every > self._seen // every
        ctx.log.record(number, loss=loss, samples=batch.count, force=force)
        self._seen = number

    # Averaging

    async def _exchange(self) -> None:
        """Average with a random neighbour."""
        if not self._neighbours:
            return
        ctx = self._ctx
        to = self._neighbours[int(ctx.rng.integers(len(self._neighbours)))]
        held = copy_of(self._held)
        self._offer = _Offer(to, held, ctx.start(ctx.net.recv(to, tag=_ANSWER)))
        ctx.start(ctx.net.send(to, held, tag=_OFFER))
        try:
            answer = await self._offer.answer
        except Cancelled:
            pass  # the other peer's offer crossed this one, and was taken as the answer
        except (PeerLost, DeadlineError) as error:  # a peer that does not answer must not block the others
            self._offer.answer.cancel()
            self._continue_without(to, error)
        else:
            self._move(held, answer.tensor)
        self._offer = None

    async def _answer_offers(self) -> None:
        """Answer offers in the background until cancelled."""
        ctx = self._ctx
        while True:
            try:
                message = await ctx.net.recv(ANY, tag=_OFFER)
            except PeerLost:
                continue  # the peer died while making an offer
            offer = self._offer
            if offer is not None and offer.to == message.source and not offer.answer.done:
                offer.answer.cancel()
                self._move(offer.held, message.tensor)
                continue
            held = copy_of(self._held)
            self._move(held, message.tensor)
            # Not awaited: a peer that does not read its answer must not block the others.
            ctx.start(ctx.net.send(message.source, held, tag=_ANSWER))

    def _move(self, mine: Tensor, theirs: Tensor) -> None:
        """Move this peer's parameters by half the difference between `theirs` and `mine`."""
        add(self._held, theirs, minus=mine, weight=0.5)

    # Ending

    async def _part(self) -> None:
        """Answer offers until no neighbour can make another.

        All updates are done, so the run ends without late peers.
        """
        ctx = self._ctx
        neighbours = tuple(self._neighbours)
        for peer in neighbours:
            ctx.start(ctx.net.send(peer, self._held[:0], tag=_FAREWELL))
        for peer in neighbours:
            await self._hear_farewell(peer)

    async def _hear_farewell(self, peer: int) -> None:
        while peer in self._neighbours:
            try:
                await self._ctx.net.recv(peer, tag=_FAREWELL)
                return
            except PeerLost as loss:
                self._continue_without(peer, loss)
            except DeadlineError as late:
                # The late peer may itself wait for another peer. Drop that other peer if it is a neighbour;
                # otherwise one of its own neighbours drops it.
                culprit = peer if late.culprit is None else late.culprit
                if culprit in self._neighbours:
                    self._continue_without(culprit, late)

    def _continue_without(self, rank: int, error: PeerLost | DeadlineError) -> None:
        """Remove a neighbour. Raise the error if it is the first peer: without its record and model the run ends."""
        if rank == self._ctx.workers[0]:
            raise error
        self._neighbours.remove(rank)
        self._ctx.log.note_lost(rank)


def _check(ctx: Context) -> None:
    samples = ctx.batch_of(ctx.workers[0], 0).total
    if samples < len(ctx.workers):
        bound = f"must be at least {len(ctx.workers)}: mode async gives each peer its own slice"
        raise ConfigurationError("batch_size", bound, samples, "use fewer workers")
