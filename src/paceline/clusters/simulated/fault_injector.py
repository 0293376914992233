"""Ranks that die in virtual time, and the notification of the other ranks, as in real clusters.

A wait for lost ranks only raises `PeerLost`. A program that waits for any of several ranks receives one `PeerLost` for
each loss, and may then wait again. A background program receives it when all awaited ranks are lost. A wait for any
rank also accepts messages of other programs of the same rank, while there are some. The notification takes no time, but
comes after the last message of the lost rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

from paceline.clusters.base.generations import Attendance, GenerationLog
from paceline.clusters.base.job import Job
from paceline.clusters.base.news import Teller, enter_news
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.observer import Observer
from paceline.clusters.simulated.context import SimulatedContext
from paceline.clusters.simulated.events import Timer
from paceline.clusters.simulated.faulty_network import LossyNetwork
from paceline.clusters.simulated.group_part import GroupPart
from paceline.clusters.simulated.messages import RecvEvent
from paceline.clusters.simulated.mortal_process import MortalProcess
from paceline.clusters.simulated.process import AnyOf, Event, Process
from paceline.clusters.simulated.window import BarrierEvent
from paceline.clusters.simulated.world import World
from paceline.context import ANY
from paceline.costs.slowdowns import Slowdowns, SlowedPrice
from paceline.errors import PeerLost
from paceline.faults import Fault, Join, Kill, Pause, Slow
from paceline.model.replica import Replica

T = TypeVar("T")


class FaultInjector:
    """Lost ranks of a run, and the notification of the others."""

    def __init__(
        self,
        world: World,
        job: Job,
        faults: Sequence[Fault],
        make_replica: Callable[[int], Replica | None],
    ) -> None:
        assert isinstance(world.network, LossyNetwork)
        self._world = world
        self._kernel = world.kernel
        self._network = world.network
        self._job = job
        self._faults = faults
        self.make_replica = make_replica
        self._network.is_uneven = not all(isinstance(fault, (Kill, Join)) for fault in faults)
        self._contexts: list[FaultyContext] = []
        self._reasons: dict[int, str] = {}
        """Reason of the loss, by rank."""
        self._attendance = Attendance.of(job)

    def contexts(self) -> list[FaultyContext]:
        """Return the ranks of the run. Faults occur at their set times."""
        self._contexts = [self._new_context(rank) for rank in range(self._job.ranks)]
        for fault in self._faults:
            if isinstance(fault, Join):
                self._schedule_join(fault)
                continue
            context = self._contexts[fault.rank]
            if fault.step is not None:
                context.step_faults.setdefault(fault.step, []).append(fault)
            elif isinstance(fault, Kill):
                assert fault.at_s is not None
                self._kernel.at(fault.at_s, self._strike, fault.rank)
            else:
                assert fault.at_s is not None
                context.slow_down(fault.at_s, fault)
        return self._contexts

    def _new_context(self, rank: int) -> FaultyContext:
        return FaultyContext(self, self._world, self._job, rank, self.make_replica(rank))

    def _schedule_join(self, fault: Join) -> None:
        """Let a lost rank begin anew at the time of a fault, or when the first rank begins its step."""
        if fault.at_s is not None:
            self._kernel.at(fault.at_s, self.join, fault)
            return
        assert fault.step is not None
        for context in self._contexts:
            context.step_faults.setdefault(fault.step, []).append(fault)

    def join(self, fault: Join) -> None:
        """Let a lost rank begin anew, if members regroup."""

    @property
    def generations(self) -> GenerationLog | None:
        """Generations of members, if the run has `min_workers`."""
        return None if self._attendance is None else self._attendance.generations

    def forget_contexts(self) -> None:
        """Drop the ranks at the end of the run. They refer to this object: only the garbage collector could free it."""
        self._contexts = []

    def is_lost(self, rank: int) -> bool:
        return rank in self._reasons

    def kill(self, rank: int) -> None:
        """Stop a rank. The run ends, or continues without it if possible."""
        context = self._contexts[rank]
        self._reasons[rank] = reason = f"killed by pl.faults in step {context.step}"
        if self._job.can_lose(rank):
            self._network.fall_back(rank)
        for process in context.processes:
            process.stop()
        if not self._job.can_lose(rank):
            # Not raised here: the strategy of a rank that dies in its own step could catch it.
            self._kernel.at(self._kernel.now, end_the_run, PeerLost(rank, reason))
            return
        if self._world.parameter_board is not None:
            self._world.parameter_board.do_without(rank)
        too_few = self._attend(rank)
        if too_few:
            self._kernel.at(self._kernel.now, end_the_run, PeerLost(rank, f"{reason}, and {too_few}"))
            return
        self._network.silence(rank, lambda to: self._contexts[to].hear_of_loss(rank))

    def _attend(self, rank: int) -> str:
        """Record a loss in the generations of members. Return why the run cannot continue."""
        if self._attendance is None:
            return ""
        step = self._contexts[self._job.reporter].step
        return self._attendance.lose(rank, step, self._kernel.now)

    def do_without_the_lost(self) -> None:
        """Exclude lost ranks from the parameter board. It may have been opened after they died."""
        assert self._world.parameter_board is not None
        for rank in self._reasons:
            self._world.parameter_board.do_without(rank)

    def error(self, lost: int, context: FaultyContext, waits_in: Event[Any]) -> PeerLost:
        where = f"rank {context.rank} was waiting in {waits_in} in step {context.step}"
        return PeerLost(lost, self._reasons[lost], where)

    def _strike(self, rank: int) -> None:
        """Kill a rank at its set time. If all ranks have ended before, set the clock back to their end."""
        programs = [context.processes[0] for context in self._contexts]
        if all(program.done for program in programs):
            self._kernel.now = max(program.ended_s for program in programs)
        elif not programs[rank].done:
            self.kill(rank)


def _nothing(_: None) -> None:
    pass


def end_the_run(loss: PeerLost) -> NoReturn:
    raise loss


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
        else:
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
