"""A rank in a run with faults: it may die, and it learns of the death of other ranks."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.clusters.base.job import Job
from paceline.clusters.base.news import Teller, enter_news
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.observer import Observer
from paceline.clusters.simulated.context import SimulatedContext
from paceline.clusters.simulated.events import Timer
from paceline.clusters.simulated.group_part import GroupPart
from paceline.clusters.simulated.messages import RecvEvent
from paceline.clusters.simulated.mortal_process import MortalProcess
from paceline.clusters.simulated.process import AnyOf, Event, Process
from paceline.clusters.simulated.window import BarrierEvent
from paceline.clusters.simulated.world import World
from paceline.context import ANY
from paceline.costs.slowdowns import Slowdowns, SlowedPrice
from paceline.faults import Fault, Join, Kill, Pause, Slow
from paceline.model.replica import Replica

if TYPE_CHECKING:
    from paceline.clusters.simulated.fault_injector import FaultInjector

T = TypeVar("T")


class FaultyContext(SimulatedContext):
    """A rank in a run with faults. It may die."""

    __slots__ = ("_heard", "_known", "_losses", "_teller", "_told", "processes", "slowdowns")

    def __init__(
        self, losses: FaultInjector, world: World, job: Job, rank: int, replica: Replica | None
    ) -> None:
        super().__init__(world, job, rank, replica)
        self._losses = losses
        self._teller, self._told = Teller(self.outcome), Outcome(rank=rank)
        self._heard: set[int] = set()
        """Lost ranks that will send no more messages."""
        self._known: set[int] = set()
        """Lost ranks that the program has been notified of, or continues without."""
        self.slowdowns = Slowdowns()
        self.processes: list[MortalProcess[Any]] = []
        """The program, and the background programs that it started."""

    # Death of this rank

    async def meet_fault(self, fault: Fault) -> None:
        if isinstance(fault, Join):
            self._losses.join(fault)
        elif isinstance(fault, Kill):
            self._losses.kill(self.rank)
            await Event[None]()  # never done
        elif isinstance(fault, (Pause, Slow)):
            self.slow_down(self.now(), fault)
            await Timer(self, 0.0)  # a paused program resumes at the end of the pause

    def slow_down(self, at_s: float, fault: Pause | Slow) -> None:
        """Pause this rank from a time on, or slow down its computations."""
        if not self.slowdowns:
            self.price = SlowedPrice(self.price, self.slowdowns, self.now)
        self.slowdowns.add(at_s, fault.seconds_s, fault.factor if isinstance(fault, Slow) else math.inf)
        if at_s > self.now():
            self.kernel.at(at_s, _nothing, None)  # so that no operation skips over the time

    def finish(self) -> Outcome:
        if self.is_lost(self.rank):  # records that it had not sent are lost with it
            self._told.lost.append((self.rank, self.step))
            return self._told
        return super().finish()

    def tell_news(self) -> None:
        enter_news(self._told, self._teller.take())

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.processes.clear()
        self._losses.forget_contexts()
        super().close()

    # Death of other ranks

    def is_lost(self, rank: int) -> bool:
        return self._losses.is_lost(rank)

    def hear_of_loss(self, rank: int) -> None:
        self._heard.add(rank)
        self.check_all()

    def go_on_without(self, rank: int) -> None:
        self._known.add(rank)

    def begin_generation(self, first: int) -> None:
        super().begin_generation(first)
        self._known.clear()  # the new program must be notified of all losses again

    def open_parameter_board(self) -> Observer:
        observer = super().open_parameter_board()
        self._losses.do_without_the_lost()
        return observer

    def new_process(self, coroutine: Coroutine[Any, None, T], name: str = "") -> Process[T]:
        process = MortalProcess(self, coroutine, name)
        # In place, because a twin has the same list.
        self.processes[:] = [each for each in self.processes if each.name or not each.done]
        self.processes.append(process)
        return process

    def check_all(self) -> None:
        """Raise PeerLost in the programs that wait for a lost rank."""
        if self._heard:
            for process in tuple(self.processes):
                self._check(process)

    def _check(self, process: MortalProcess[Any]) -> None:
        event = process.parked
        if process.done or event is None or event.done:
            return
        lost = self._lost_of(process, event)
        if lost is not None:
            self._known.add(lost)
            process.throw(self._losses.error(lost, self, event))

    def _lost_of(self, process: MortalProcess[Any], event: Event[Any]) -> int | None:
        """Return the lost rank to raise in a waiting program. None if there is none."""
        awaited = self._awaited(event)
        lost = [rank for rank in awaited if rank in self._heard]
        news = [rank for rank in lost if rank not in self._known]
        all_lost = len(lost) == len(awaited) and not self._may_hear_itself(process, event)
        if isinstance(event, BarrierEvent) or all_lost:
            news = news or lost  # it waits in vain
        elif not process.name:  # in the background
            return None
        return news[0] if news else None

    def _may_hear_itself(self, process: MortalProcess[Any], event: Event[Any]) -> bool:
        """Return whether another program of this rank may send the awaited message."""
        others = (each for each in self.processes if each is not process and each is not event)
        return _takes_own(event) and any(not each.done for each in others)

    def _awaited(self, event: Event[Any]) -> Sequence[int]:
        """Return the ranks that an event waits for."""
        if event.done:  # a program that waited for it has not resumed yet
            return []
        if isinstance(event, RecvEvent):
            others = [rank for rank in range(self.job.ranks) if rank != self.rank]
            return others if event.source == ANY else [event.source]
        if isinstance(event, AnyOf):
            return list(dict.fromkeys(rank for each in event.events for rank in self._awaited(each)))
        if isinstance(event, GroupPart):
            return self._awaited(event.process) if event.process is not None else []
        if isinstance(event, Process):
            return self._awaited(event.parked) if event.parked is not None else []
        return event.missing() if isinstance(event, BarrierEvent) else []


def _takes_own(event: Event[Any] | None) -> bool:
    """Return whether it is a wait for any rank. Another program of the same rank can end it."""
    if isinstance(event, AnyOf):
        return any(_takes_own(each) for each in event.events)
    if isinstance(event, Process):
        return _takes_own(event.parked)
    return isinstance(event, RecvEvent) and event.source == ANY


def _nothing(_: None) -> None:
    pass
