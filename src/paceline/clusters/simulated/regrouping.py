"""Simulated ranks of a run with `min_workers`: a lost rank does not end the run.

The members detect a loss at once. Each stops at its next wait. A computation is completed first, as in a real process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from paceline.clusters.base.generations import GenerationLog
from paceline.clusters.base.job import Job
from paceline.clusters.base.members import Agreement, Arrival, MembersChanged, Membership
from paceline.clusters.base.news import drop_entries, enter_news
from paceline.clusters.rank.groups import Groups
from paceline.clusters.simulated.context import World
from paceline.clusters.simulated.events import ComputeEvent, PassEvent, ProgressEvent, Timer
from paceline.clusters.simulated.fault_injector import (
    FaultInjector,
    FaultyContext,
    MortalProcess,
    end_the_run,
)
from paceline.clusters.simulated.net import SimulatedGroupNet
from paceline.clusters.simulated.process import Event
from paceline.errors import PeerLost
from paceline.faults import Fault
from paceline.model.replica import Replica

_COMPUTING = (ComputeEvent, PassEvent, ProgressEvent, Timer)


class Regrouping(FaultInjector):
    """Lost ranks of a run, and the generations of its members."""

    def __init__(self, world: World, job: Job, faults: Sequence[Fault]) -> None:
        super().__init__(world, job, faults)
        self.agreement = Agreement.of(job)
        self._generations = GenerationLog(self.agreement.present)

    @property
    def generations(self) -> GenerationLog:
        return self._generations

    def _new_context(self, rank: int, replica: Replica | None) -> RegroupingContext:
        return RegroupingContext(self, self._world, self._job, rank, replica)

    def kill(self, rank: int) -> None:
        if not self._job.can_lose(rank):
            super().kill(rank)
            return
        context = self._contexts[rank]
        self._reasons[rank] = reason = f"killed by pl.faults in step {context.step}"
        self._network.fall_back(rank)
        for process in context.processes:
            process.stop()
        self._generations.note_loss(rank, self._kernel.now)
        if not self.agreement.lose(rank):
            error = PeerLost(rank, f"{reason}, and {self.agreement.too_few}")
            self._kernel.at(self._kernel.now, end_the_run, error)
            return
        self._network.silence(rank, _nothing)
        for other in self.agreement.members:
            self._contexts[other].check_all()
        self.settle()

    def settle(self) -> None:
        """Begin the next generation, or end the run, if all members have arrived."""
        recorded = max((each.records_told for each in self._members_lost()), default=0)
        decision = self.agreement.decide(recorded)
        if decision is None and not self.agreement.is_over:
            return
        if decision is not None:
            self._world.parameter_board = None
            self._generations.begin(decision, self._kernel.now)
            for context in self._members_lost():
                context.drop_told(decision.first)
        for rank in self.agreement.members:
            self._of(rank).meeting.decide(decision)

    def _of(self, rank: int) -> RegroupingContext:
        context = self._contexts[rank]
        assert isinstance(context, RegroupingContext)
        return context

    def _members_lost(self) -> list[RegroupingContext]:
        return [self._of(rank) for rank in self.agreement.lost]


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

    __slots__ = ("_regrouping", "meeting")

    def __init__(
        self, regrouping: Regrouping, world: World, job: Job, rank: int, replica: Replica | None
    ) -> None:
        super().__init__(regrouping, world, job, rank, replica)
        self._regrouping = regrouping
        self.meeting = Meeting(self)

    @property
    def records_told(self) -> int:
        """Number of records that this rank has told the driver."""
        return self._told.records[-1]["step"] if self._told.records else 0

    def drop_told(self, first: int) -> None:
        drop_entries(self._told, first)

    def tell_dropped(self, first: int) -> None:
        enter_news(self._told, self._teller.drop(first))

    def check_all(self) -> None:
        """Stop the program if the members have changed."""
        if self._regrouping.agreement.wanted == self.generation:
            return
        for process in tuple(self.processes):
            if process.name and _waits(process):
                process.throw(MembersChanged())

    async def meet_members(self, arrival: Arrival) -> Membership | None:
        for process in tuple(self.processes):
            if not process.name and not process.done:
                process.cancel()
        self.meeting = Meeting(self)
        self._regrouping.agreement.arrive(self.rank, arrival)
        self._regrouping.settle()
        return await self.meeting

    def rewire(self, membership: Membership) -> None:
        number_of, hosts = self.world.groups.number_of, self.world.hosts
        generation, members = membership.generation, membership.members
        groups = Groups(self.rank, hosts, number_of, generation=generation, members=members)
        for each in cast(list[RegroupingContext], [self, *self.twins]):
            each.groups = groups
            each.net = SimulatedGroupNet(each, groups.everybody)


def _waits(process: MortalProcess[Any]) -> bool:
    """Return whether a program waits for other ranks."""
    event = process.parked
    return not (process.done or event is None or event.done or isinstance(event, (Meeting, *_COMPUTING)))
