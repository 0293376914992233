"""The context of a strategy's program beside a user's loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from paceline.clusters.base.job import Job
from paceline.clusters.local.worker import drive
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.status_board import Status
from paceline.clusters.rank.logbook import Logbook
from paceline.collectives import broadcast
from paceline.context import Batch, Context
from paceline.errors import EarlyEndError, PeerLost
from paceline.links.operation import Activity, Operation
from paceline.links.sending import SendOperation
from paceline.loop.batch import LoopBatch, LoopData, batch_of
from paceline.loop.facts import StepFacts
from paceline.loop.facts_table import FACTS, FactsTable
from paceline.loop.learner import LoopLearner
from paceline.loop.rendezvous import Delivery, LoopEnded, StartedErrand

if TYPE_CHECKING:
    from paceline.loop.session import Loop

_MESSAGE_S = 5.0  # timeout for a message of a rank that has ended
_LAST_WORDS_S = 1.0  # timeout for the messages of a rank that ends
_POLL_S = 0.01


class LoopContext(ProcessContext):
    """Context of a worker whose gradients come from the user's loop, or of a server of such workers."""

    model: LoopLearner
    log: LoopLog

    def __init__(self, job: Job, rank: int, *, loop: Loop, **options: Any) -> None:
        self.loop = loop
        self.serving = [number for number, role in enumerate(job.roles) if role != "worker"]
        """Ranks that apply gradients of other ranks."""
        self.delivery: Delivery
        super().__init__(job, rank, **options)
        self.log = LoopLog(self)
        self.table = FactsTable(self)
        if rank in self.serving:
            self.model.table = self.table
            self.waits.departed = self._departed
        self.port.device = loop.device
        loop.rendezvous.ring = self.wake

    def _open_model(self, device: torch.device) -> LoopLearner:
        return LoopLearner(self, self.loop.replica(self.job, self.rank))

    @property
    def data(self) -> Any:
        return LoopData(self)

    @property
    def last_step(self) -> int:
        # After the end of the loop a peer makes no more updates. Servers end when all loops have.
        return 0 if self.loop.rendezvous.has_ended and not self.serving else super().last_step

    @property
    def is_server(self) -> bool:
        """Whether this rank has no loop."""
        return self.rank in self.servers

    # Lifecycle

    async def live(self) -> Any:
        """Run the program from the first step of the user's loop to its end."""
        try:
            await self._begin()
            await cast(Awaitable[Any], self.job.program(self.rank)(cast(Context, self)))
        except LoopEnded:
            pass
        except PeerLost as loss:
            await self._check_end(loss)
        await self._depart()
        await self._settle_loop()
        await self.log.publish_at_end()
        self.step = self.loop.steps

    async def _begin(self) -> None:
        """Give every rank the values of the first worker, and wait for the first step."""
        for tensor in (self.model.parameters, *self.model.buffers, *self.loop.other_tensors()):
            await broadcast(self.net, tensor, root=0)
        first = StepFacts(step=0, count=0, total=0)
        if not self.is_server:
            self.delivery = self._next_delivery()
            first = self.delivery.facts
        total = torch.tensor([first.total])
        await broadcast(self.net, total, root=0)
        self.first_total = int(total)
        self._is_first = not self.is_server

    async def _check_end(self, loss: PeerLost) -> None:
        """Return normally if the run is over for this rank because loops have ended. Otherwise raise an error."""
        if self.board.status(loss.rank) is Status.LOST:
            raise loss
        if self.is_server or self.loop.rendezvous.has_ended:
            return
        ended = await self._ended_loops()
        if not ended:
            raise loss
        first = min(ended, key=lambda rank: ended[rank])
        if ended[first] < self.loop.steps:
            raise EarlyEndError(first, ended[first], self.rank, self.loop.steps) from loss
        self.loop.note_over()

    def _departed(self, operation: Operation[Any]) -> list[int]:
        """Return the awaited ranks that will send nothing to this server, because their loops have ended."""
        first = self.serving[0]
        if self.rank != first:  # the first server decides on the end, and the other servers follow
            has_ended = self.board.status(first) is Status.FINISHED
            return [first] if has_ended and operation.awaited() == (first,) else []
        ended = self.table.ended()
        if operation.takes_own():
            return list(ended)
        # A worker that is also a server still sends messages as a server.
        only_works = [rank for rank in ended if rank not in self.serving or rank == self.rank]
        return [rank for rank in only_works if rank in operation.awaited()]

    async def _ended_loops(self) -> Mapping[int, int]:
        """Return the steps of the loops that have ended. The messages may take a moment."""
        until_s = time.monotonic() + _MESSAGE_S
        while not self.table.ended() and time.monotonic() < until_s:
            await self.sleep(_POLL_S)
        return self.table.ended()

    async def _depart(self) -> None:
        """Notify all ranks that this rank's loop has ended. A worker that is also a server does this in its twin."""
        if self.is_server or self.loop.has_departed or self.loop.is_over:
            return
        self.loop.has_departed = True
        facts = StepFacts.of_end(self.loop.steps).pack()
        for rank in range(self.job.ranks):
            if self.board.status(rank) is Status.RUNNING:
                self.start(self.net.send(rank, facts, tag=FACTS))

    async def _settle_loop(self) -> None:
        """Complete the messages of this rank.

        A worker waits only briefly, because other ranks may have ended without reading them.
        """
        self.table.close()
        limit_s = self.deadline_s if self.is_server else _LAST_WORDS_S
        until_s = time.monotonic() + limit_s
        for operation in list(self.waits.under_way):
            if not isinstance(operation, SendOperation):
                operation.cancel()
        while time.monotonic() < until_s and any(map(self._is_needed, self.waits.under_way)):
            await self.sleep(_POLL_S)

    def _is_needed(self, operation: Operation[Any]) -> bool:
        if not isinstance(operation, SendOperation) or operation.poll():
            return False
        return self.board.status(operation.to) is Status.RUNNING

    # The loop over steps

    async def batches(
        self, own: Iterator[Batch] | None = None, *, endless: bool = False
    ) -> AsyncIterator[Batch]:
        assert own is None, "the loop has the batches: see check_strategy"
        if not endless:
            async for step in self.rounds():
                yield LoopBatch(step, self.rank, self._request_facts)
            return
        self.own_pace = True
        while True:
            if not self._takes_first():
                found = await NextStep(self)
                if found is None:
                    await self._end_of_batches()
                    return
                self.delivery = found
            self.step = self.delivery.facts.step
            yield batch_of(self.delivery.facts, self.rank)
            self.outcome.bytes_over_time.append((self.now(), self.outcome.bytes_sent))

    async def _end_of_batches(self) -> None:
        """End the program of a worker that has servers. Peers end without this, at the end of their batches."""
        await self._depart()
        if self.in_background:
            await Never(self)  # the server on this rank continues without its worker
        if self.serving:
            raise LoopEnded

    def _request_facts(self) -> StepFacts:
        """Wait in the foreground until the user's loop delivers the next gradient."""
        if not self._takes_first():
            self.delivery = self._next_delivery()
        return self.delivery.facts

    def _takes_first(self) -> bool:
        """Return whether the program now takes the gradient that started it."""
        is_first, self._is_first = self._is_first, False
        return is_first

    def _next_delivery(self) -> Delivery:
        self.board.set_step(self.rank, self.step)
        self.board.note_doing(self.rank, Activity.compute)
        self.model.engine.refresh()
        while True:
            item = self.loop.rendezvous.wait()
            if isinstance(item, Delivery):
                self.board.note_doing(self.rank, Activity.working)
                return item
            drive(item.run(self))


class NextStep(Operation[Delivery | None]):
    """Done when the user's loop delivers a gradient, or has ended: None. Background programs advance meanwhile."""

    __slots__ = ("_context",)

    doing = Activity.compute

    def __init__(self, context: LoopContext) -> None:
        super().__init__(context)
        self._context = context
        context.model.engine.refresh()

    def poll(self) -> bool:
        while not self.done:
            try:
                item = self._context.loop.rendezvous.take()
            except LoopEnded:
                self.result, self.done = None, True
                break
            if item is None:
                return False
            if isinstance(item, StartedErrand):
                self._context.start(item.run(self._context))
                continue
            self.result, self.done = item, True
        return True

    def __str__(self) -> str:
        return "the user's loop"


class Never(Operation[None]):
    """Never done. The background program that awaits it is cancelled at the end of the run."""

    __slots__ = ()

    def poll(self) -> bool:
        return False


class LoopLog(Logbook):
    """Log of a worker with a user's loop."""

    __slots__ = ()

    _rank: LoopContext

    def inspects(self, step: int, *, average: bool = False) -> bool:
        """Return True if several servers hold the parameters: any step may be the last one."""
        return len(self._rank.serving) > 1 or super().inspects(step, average=average)

    def note_lost(self, rank: int) -> None:
        """Record a lost rank. A rank with an ended loop is not lost, unless this rank's loop is longer."""
        context = self._rank
        steps = context.table.ended().get(rank)
        if steps is None:
            super().note_lost(rank)
            return
        if not context.serving and steps < context.loop.steps:
            raise EarlyEndError(rank, steps, context.rank, context.loop.steps)
        context.waits.do_without(rank)

    async def publish_at_end(self) -> None:
        """If workers have their own parameters, the run's model is their mean: publish them."""
        context = self._rank
        if self._endings.observes and not context.own_pace and not context.is_server:
            self.evaluations.publish()
            await self.evaluations.observer.meet()
            await self.evaluations.observer.part()
