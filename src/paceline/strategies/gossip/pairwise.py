"""A peer of AD-PSGD: it averages with one random neighbour after another, while its gradients are computed.

An exchange is one offer and one answer. Peer i sends what it holds, a. Peer j, whenever the offer comes, holds b: it
moves by (a - b)/2 and answers with b. When the answer comes, peer i moves by (b - a)/2. The two moves cancel, so that
the sum over all peers is kept, whatever else moved i and j between: their own gradients, other exchanges. Nobody is
locked, and j answers at once whatever it is doing: there is no cycle of peers that wait for each other on any graph,
odd rings included, and no need for the two kinds of peers of the paper, which exist on bipartite graphs alone.

Two offers may cross: i's is on its way to j, and j's to i. Answered like others they would make the two swap what they
hold instead of averaging it, for ever if the two keep pace. So each takes the other's offer as the answer to its own:
i moves by (b - a)/2 and j by (a - b)/2. Messages between two peers come in order, so both see that it is so: an answer
that was sent before an offer is there before it.

A gradient is computed at a copy of what the peer holds, and the optimizer's step on that copy is added to what the peer
holds by then. Who has ended answers until all its neighbours have said farewell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.context import ANY, Batch, Context, Handle, Message
from paceline.errors import Cancelled, ConfigurationError, DeadlineError, PeerLost
from paceline.schedules.topologies import Topology
from paceline.tensors import add, copy_of, overwrite

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Pairwise"]

# The tags of what peers tell each other.
_OFFER, _ANSWER, _FAREWELL = 1, 2, 3


@dataclass(frozen=True, slots=True)
class _Offer:
    """An offer that is not answered yet."""

    to: int
    held: Tensor
    """What the peer held when it made the offer."""
    answer: Handle[Message]


class Pairwise:
    """One peer's part."""

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
        self._seen = ctx.model.version  # updates of all peers, at this one's last

    async def run(self) -> None:
        ctx = self._ctx
        ctx.log.show(self._held)
        answering = ctx.start(self._answer_offers())
        async for batch in ctx.batches(endless=True):
            if batch.count and not await self._step(batch):
                break
        await self._part()
        answering.cancel()
        overwrite(ctx.model.parameters, self._held)
        await ctx.log.observe(ctx.log.steps - 1, force=True, own_metric=self._evaluate_peers)

    async def _step(self, batch: Batch) -> bool:
        """One gradient, one exchange, one update; tell whether the run goes on."""
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
        """Add the optimizer's step on the copy to what this peer holds; it is update `number` of all."""
        ctx = self._ctx
        before = copy_of(ctx.model.parameters)
        await ctx.model.apply()
        add(self._held, ctx.model.parameters, minus=before)
        ctx.log.show(self._held)
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
            pass  # the other's offer crossed this one, and was taken for the answer
        except (PeerLost, DeadlineError):  # who does not answer cannot hold up the others
            self._offer.answer.cancel()
            self._go_on_without(to)
        else:
            self._move(held, answer.tensor)
        self._offer = None

    async def _answer_offers(self) -> None:
        """In the background, for as long as the peer lives."""
        ctx = self._ctx
        while True:
            try:
                message = await ctx.net.recv(ANY, tag=_OFFER)
            except PeerLost:
                continue  # it died while it made an offer
            offer = self._offer
            if offer is not None and offer.to == message.source and not offer.answer.done:
                offer.answer.cancel()
                self._move(offer.held, message.tensor)
                continue
            held = copy_of(self._held)
            self._move(held, message.tensor)
            # Not awaited: who does not read its answer must not hold up the others.
            ctx.start(ctx.net.send(message.source, held, tag=_ANSWER))

    def _move(self, mine: Tensor, theirs: Tensor) -> None:
        """Half of the way from what this peer held to what the other did."""
        add(self._held, theirs, minus=mine, weight=0.5)

    # Ending

    async def _part(self) -> None:
        """Answer until no neighbour can make another offer. All updates are done: who is late is left behind."""
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
            except PeerLost:
                self._go_on_without(peer)
            except DeadlineError as late:
                # It may be late because it waits for another, which is the one to leave behind. Who is no neighbour
                # of this peer is left behind by that one.
                culprit = peer if late.culprit is None else late.culprit
                if culprit in self._neighbours:
                    self._go_on_without(culprit)

    def _go_on_without(self, rank: int) -> None:
        self._neighbours.remove(rank)
        self._ctx.log.note_lost(rank)


def _check(ctx: Context) -> None:
    samples = ctx.model.data.batch_of(ctx.workers[0], 0).total
    if samples < len(ctx.workers):
        bound = f"must be at least {len(ctx.workers)}: mode async gives each peer a slice of its own"
        raise ConfigurationError("batch_size", bound, samples, "use fewer workers")
