"""Driver side of a local run with `min_workers`: it leads the members from one generation to the next.

The members map new rings for each generation. A message of an earlier generation, complete or not, stays in the old
ones, and a process that was stopped has no access to the new ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from paceline.clusters.base.generations import GenerationLog
from paceline.clusters.base.job import Job
from paceline.clusters.base.members import Agreement, Arrival
from paceline.clusters.base.news import drop_entries
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.base.roster import Roster
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.links.memory.shared import SharedMemory


class Send(Protocol):
    def __call__(
        self, rank: int, word: str, values: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> None: ...


class Members:
    """The members of a run, and the messages that change them."""

    def __init__(
        self, job: Job, board: StatusBoard, rings_nbytes: int, send: Send, addresses: Mapping[int, Any]
    ) -> None:
        """`addresses` has the address of each rank over TCP. Empty without TCP."""
        self.agreement = Agreement.of(job)
        self.generations = GenerationLog(self.agreement.present)
        self._ranks = job.ranks
        self._board = board
        self._rings_nbytes = rings_nbytes
        self._send = send
        self._addresses = addresses
        self._waits_since_s = math.inf  # when the first member arrived, on the monotonic clock
        self._start_s = time.monotonic()
        self._released: set[int] = set()

    def begin(self, start_s: float) -> None:
        self._start_s = start_s

    @property
    def reporter(self) -> int:
        return self.agreement.present.reporter

    @property
    def is_over(self) -> bool:
        """Whether all members have completed the run, and the reporter has returned it."""
        return bool(self._released - {self.reporter}) or self._released == {self.reporter} == set(
            self.agreement.members
        )

    def lose(self, rank: int) -> str:
        """Record a loss, before the other ranks see it. Return why the run cannot continue. Empty if it can."""
        if rank == self.reporter and self._board.clock.stands:
            self._board.clock.go_on()  # it was stopped for an evaluation, by this rank
        self.generations.note(rank, time.monotonic() - self._start_s)
        is_enough = self.agreement.lose(rank)
        self._released.discard(rank)
        self._board.wanted_generation = self.agreement.wanted
        return "" if is_enough else self.agreement.too_few

    def arrive(self, rank: int, values: dict[str, Any]) -> None:
        if rank not in self.agreement.members:
            if self._released:  # too late
                return
            self._let_in(rank)
        self._waits_since_s = min(self._waits_since_s, time.monotonic())
        self.agreement.arrive(rank, Arrival.from_values(values))

    def _let_in(self, rank: int) -> None:
        """End the generation: a new process of a lost rank is ready to join."""
        self.agreement.join(rank)
        self.generations.note(rank, time.monotonic() - self._start_s)
        self._board.wanted_generation = self.agreement.wanted
        self._board.bells.ring_all()

    def stuck(self, is_stopped: Callable[[int], bool], deadline_s: float) -> list[int]:
        """Return the members that are stopped by a signal while the others have waited for `deadline_s`."""
        if time.monotonic() - self._waits_since_s < deadline_s:
            return []
        return [rank for rank in self.agreement.missing if is_stopped(rank)]

    def late(self, limit_s: float) -> list[int]:
        """Return the members that have not arrived `limit_s` after a loss."""
        is_regrouping = self.agreement.wanted > self.agreement.present.generation
        waits = is_regrouping and time.monotonic() - self._waits_since_s > limit_s
        return self.agreement.missing if waits else []

    def settle(self, roster: Roster) -> bool:
        """Begin the next generation, or release the members from the run, if all have arrived.

        Return whether a generation has begun.
        """
        if self.agreement.is_over:
            self._release(roster.outcomes)
            return False
        left = [each for rank in range(self._ranks) for each in roster.left_by(rank)]
        decision = self.agreement.decide(
            max((each["step"] for one in left for each in one.records), default=0)
        )
        if decision is None:
            return False
        self._waits_since_s = math.inf
        self.generations.begin(decision, time.monotonic() - self._start_s)
        for each in left:
            drop_entries(each, decision.first)
        for rank in decision.joined:
            self._board.set_status(rank, Status.RUNNING)
        rings = SharedMemory.create("rings", self._rings_nbytes)
        addresses = [self._addresses.get(rank) for rank in range(self._ranks)]
        for rank in set(range(self._ranks)) - set(decision.members):
            addresses[rank] = None
        for rank in decision.members:
            values = {**decision.to_values(), "addresses": addresses}
            self._send(rank, "members", values, fds=[rings.fd])
        rings.close_fd()
        return True

    def _release(self, outcomes: dict[int, Outcome]) -> None:
        """Let the reporter return the run, then the others. If it dies before, another member takes its place."""
        others = [rank for rank in self.agreement.members if rank != self.reporter]
        ready: Iterable[int] = others if self.reporter in outcomes else [self.reporter]
        for rank in ready:
            if rank not in self._released:
                self._released.add(rank)
                self._send(rank, "end")
