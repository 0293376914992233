"""Simulated ranks of a run with `min_workers`: a lost rank does not end the run.

The members detect a loss immediately. Each stops at its next wait. As in a real process, a computation is completed
first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from paceline.clusters.base.generations import GenerationLog
from paceline.clusters.base.job import Job
from paceline.clusters.base.members import NO_STATE, Agreement, Arrival, MembersChanged, Membership
from paceline.clusters.base.news import add_former, drop_entries, enter_news
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.checkpoint_writer import prepare
from paceline.clusters.simulated.events import ComputeEvent, PassEvent, ProgressEvent, Timer
from paceline.clusters.simulated.fault_injector import KILLED, FaultInjector, end_the_run
from paceline.clusters.simulated.faulty_context import FaultyContext
from paceline.clusters.simulated.learner import SimulatedLearner
from paceline.clusters.simulated.mortal_process import MortalProcess
from paceline.clusters.simulated.process import Event
from paceline.clusters.simulated.world import World
from paceline.errors import PeerLost
from paceline.faults import Fault, Join
from paceline.model.replica import Replica

_COMPUTING = (ComputeEvent, PassEvent, ProgressEvent, Timer)


class Regrouping(FaultInjector):
    """Lost ranks of a run, and the generations of its members."""

    def __init__(
        self,
        world: World,
        job: Job,
        faults: Sequence[Fault],
        make_replica: Callable[[int], Replica | None],
        *,
        restarts: bool,
    ) -> None:
        """With `restarts`, lost ranks begin anew and join."""
        super().__init__(world, job, faults, make_replica)
        self.agreement = Agreement.of(job)
        self._generations = GenerationLog(self.agreement.present)
        self._restarts = restarts
        self._last_loss = (0, "")
        self._joined: set[int] = set()
        """Faults of which a rank has already begun anew."""

    @property
    def generations(self) -> GenerationLog:
        return self._generations

    def _new_context(self, rank: int) -> RegroupingContext:
        return RegroupingContext(self, self._world, self._job, rank, self.make_replica(rank))

    def kill(self, rank: int, how: str = KILLED) -> None:
        if not self._job.can_lose(rank):
            super().kill(rank, how)
            return
        if self.agreement.is_over:  # its program is about to return, and no rank waits for it
            return
        self.finish_files()
        context = self._contexts[rank]
        if context.checkpoint_writer is not None:
            context.checkpoint_writer.abandon("it is lost")
        self._reasons[rank] = reason = f"{how} in step {context.step}"
        self._network.fall_back(rank)
        for process in context.processes:
            process.stop()
        self._generations.note(rank, self._kernel.now)
        self._last_loss = rank, reason
        if not self.agreement.lose(rank):
            self._end_run(self.agreement.too_few)
            return
        self._network.silence(rank, _nothing)
        self._interrupt()
        self.settle()
        if self._restarts:
            self._kernel.at(self._kernel.now, self._restart, rank)

    def join(self, fault: Join) -> None:
        programs = [context.processes[0] for context in self._contexts]
        if all(program.done for program in programs):
            self._kernel.now = max(program.ended_s for program in programs)
        elif id(fault) not in self._joined and self._reasons:
            self._kernel.at(self._kernel.now, self._restart, min(self._reasons))
        self._joined.add(id(fault))

    def _end_run(self, why: str) -> None:
        rank, reason = self._last_loss
        self._kernel.at(self._kernel.now, end_the_run, PeerLost(rank, f"{reason}, and {why}"))

    def _interrupt(self) -> None:
        for other in self.agreement.members:
            self._contexts[other].check_all()

    def _restart(self, rank: int) -> None:
        """Begin another program of a lost rank, unless the run is over."""
        former = self._of(rank)
        if self.agreement.is_over or rank not in self._reasons:
            return
        context = self._new_context(rank)
        context.former, context.joins = former, True
        self._contexts[rank] = context
        prepare(context)
        del self._reasons[rank]
        self._network.restore(rank)
        self._kernel.ready.append(context.begin_program())

    def arrive(self, rank: int, arrival: Arrival) -> bool:
        """Record that a rank has stopped, or is ready to join. Return False if it is too late to join."""
        if rank not in self.agreement.members:
            if self.agreement.is_over:
                return False
            self.agreement.join(rank)
            self._generations.note(rank, self._kernel.now)
            self._interrupt()
        self.agreement.arrive(rank, arrival)
        self.settle()
        return True

    def settle(self) -> None:
        """Begin the next generation, or end the run, if all members have arrived."""
        if self.agreement.is_lost:
            self._end_run(NO_STATE)
            return
        self.finish_files()
        dead = [each for rank in range(self._job.ranks) for each in self._of(rank).dead]
        recorded = max((each.records_told for each in dead), default=0)
        decision = self.agreement.decide(recorded)
        if decision is None and not self.agreement.is_over:
            return
        if decision is not None:
            self._world.parameter_board = None
            self._generations.begin(decision, self._kernel.now)
            for each in dead:
                each.drop_told(decision.first)
        for rank in self.agreement.members:
            self._of(rank).meeting.decide(decision)

    def finish_files(self) -> None:
        """Wait until the files of checkpoints are on disk for which all ranks have submitted their state.

        This takes no virtual time. A run that goes back to a checkpoint does not depend on the speed of this machine.
        """
        if not self._job.returns_to_checkpoint:
            return
        programs = [[*self._of(rank).formers, self._of(rank)] for rank in range(self._job.ranks)]
        submitted = [max(each.submitted for each in of_rank) for of_rank in programs]
        needed = [submitted[member] for member in self.agreement.present.members]
        for each in sorted(itertools.chain(*programs), key=lambda each: each.is_reporter):
            if each.checkpoint_writer is not None:
                each.checkpoint_writer.finish_if(needed)

    def _of(self, rank: int) -> RegroupingContext:
        context = self._contexts[rank]
        assert isinstance(context, RegroupingContext)
        return context


def _nothing(_rank: int) -> None:
    pass


class Meeting(Event[Membership | None]):
    """Done when the next generation of members is decided."""

    def __init__(self, context: RegroupingContext) -> None:
        super().__init__()
        self._context = context

    def decide(self, decision: Membership | None) -> None:
        self.result = decision
        self._context.kernel.finish(self)

    def __str__(self) -> str:
        return "meeting of the members"


class RegroupingContext(FaultyContext):
    """A rank that drops the incomplete step when a member is lost."""

    __slots__ = ("_regrouping", "former", "meeting")

    def __init__(
        self, regrouping: Regrouping, world: World, job: Job, rank: int, replica: Replica | None
    ) -> None:
        super().__init__(regrouping, world, job, rank, replica)
        self._regrouping = regrouping
        self.meeting = Meeting(self)
        self.former: RegroupingContext | None = None
        """The dead program of this rank that this one replaces."""

    @property
    def formers(self) -> list[RegroupingContext]:
        """Dead programs of this rank that were replaced, in order."""
        return [] if self.former is None else [*self.former.formers, self.former]

    @property
    def dead(self) -> list[RegroupingContext]:
        """All dead programs of this rank."""
        return [*self.formers, self] if self.is_lost(self.rank) else self.formers

    def finish(self) -> Outcome:
        outcome = super().finish()
        for each in reversed(self.formers):
            each._told.lost.append((each.rank, each.step))
            add_former(outcome, each._told)
        return outcome

    def close(self) -> None:
        if self.former is not None:
            self.former.close()
        super().close()

    @property
    def records_told(self) -> int:
        """Number of records that this rank has told the driver."""
        return self._told.records[-1]["step"] if self._told.records else 0

    @property
    def submitted(self) -> tuple[int, int]:
        """Generation and step of the newest file that this rank has begun to write."""
        return (0, 0) if self.checkpoint_writer is None else self.checkpoint_writer.submitted

    def drop_told(self, first: int) -> None:
        drop_entries(self._told, first)

    def tell_dropped(self, first: int) -> None:
        enter_news(self._told, self._teller.drop(first))

    def check_all(self) -> None:
        """Stop the program if the members have changed."""
        if not self.members_changed:
            return
        for process in tuple(self.processes):
            if process.name and _waits(process):
                process.throw(MembersChanged())

    @property
    def members_changed(self) -> bool:
        return self._regrouping.agreement.wanted != self.generation

    async def meet_members(self, arrival: Arrival) -> Membership | None:
        for process in tuple(self.processes):
            if not process.name and not process.done:
                process.cancel()
        self.meeting = Meeting(self)
        if not self._regrouping.arrive(self.rank, arrival):
            return None
        return await self.meeting

    def settle(self) -> None:
        self._regrouping.finish_files()

    def rebuild_model(self) -> None:
        self.model = SimulatedLearner(self, self._regrouping.make_replica(self.rank))

    def rewire(self, membership: Membership) -> None:
        self.renew_net()


def _waits(process: MortalProcess[Any]) -> bool:
    """Return whether a program waits for other ranks."""
    event = process.parked
    return not (process.done or event is None or event.done or isinstance(event, (Meeting, *_COMPUTING)))
