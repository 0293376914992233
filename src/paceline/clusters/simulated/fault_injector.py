"""Ranks that die in virtual time, and the notification of the other ranks, as in real clusters.

A wait for lost ranks only raises `PeerLost`. A program that waits for any of several ranks receives one `PeerLost` for
each loss, and may then wait again. A background program receives it when all awaited ranks are lost. A wait for any
rank also accepts messages of other programs of the same rank, while there are some. The notification takes no time, but
comes after the last message of the lost rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from paceline.clusters.base.generations import Attendance, GenerationLog
from paceline.clusters.base.job import Job
from paceline.clusters.base.silence import LONGEST_SILENCE_S
from paceline.clusters.simulated.faulty_context import FaultyContext
from paceline.clusters.simulated.faulty_network import LossyNetwork
from paceline.clusters.simulated.process import Event
from paceline.clusters.simulated.world import World
from paceline.errors import PeerLost
from paceline.faults import Cut, Fault, Join, Kill
from paceline.model.replica import Replica

KILLED = "killed by pl.faults"


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
            if isinstance(fault, Cut):
                self._schedule_cut(fault)
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

    def _schedule_cut(self, fault: Cut) -> None:
        """Hold messages back. Ranks that cannot reach the driver for too long stop."""
        self._network.cut(fault)
        if fault.seconds_s > LONGEST_SILENCE_S:
            for rank in fault.side:
                self._kernel.at(fault.at_s + LONGEST_SILENCE_S, self._cut_off, rank)

    def _cut_off(self, rank: int) -> None:
        if not self.is_lost(rank):
            self._network.drop_held(rank)
            self._strike(rank, f"cut off from the driver for {LONGEST_SILENCE_S:g} s")

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

    def kill(self, rank: int, how: str = KILLED) -> None:
        """Stop a rank. The run ends, or continues without it if possible."""
        context = self._contexts[rank]
        self._reasons[rank] = reason = f"{how} in step {context.step}"
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

    def _strike(self, rank: int, how: str = KILLED) -> None:
        """Kill a rank at its set time. If all ranks have ended before, set the clock back to their end."""
        programs = [context.processes[0] for context in self._contexts]
        if all(program.done for program in programs):
            self._kernel.now = max(program.ended_s for program in programs)
        elif not programs[rank].done:
            self.kill(rank, how)


def end_the_run(loss: PeerLost) -> NoReturn:
    raise loss
