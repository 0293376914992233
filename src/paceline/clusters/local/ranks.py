"""State of the ranks of a local run: their processes, how they ended, and which of them are still members."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.clusters.base.generations import Attendance
from paceline.clusters.base.job import Job
from paceline.clusters.base.members import NO_STATE
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.base.roster import Roster
from paceline.clusters.base.silence import patience_s
from paceline.clusters.local.members import Members, Send
from paceline.clusters.local.requests import Requests
from paceline.clusters.local.resources import Resources
from paceline.clusters.process.awaited_work import LIMIT
from paceline.clusters.process.blame import ProcessState, explain, life_of
from paceline.clusters.process.status_board import Status
from paceline.errors import DeadlineError, RunError
from paceline.runs.generation import Generation

_log = logging.getLogger("paceline")

GRACE_S = 1.0
"""Time for a lost rank to end, and for the others to report what they waited for."""


class Ranks:
    """The ranks as the driver sees them."""

    def __init__(
        self,
        job: Job,
        roster: Roster,
        resources: Resources,
        requests: Requests,
        send: Send,
        deadline_s: float,
        *,
        addresses: Mapping[int, Any],
        launch: Callable[[int], None],
        restarts: bool,
    ) -> None:
        """`launch` starts another process for a lost rank, which joins the run. With `restarts` each lost rank gets
        one."""
        self.pids: dict[int, int] = {}
        """Process of each rank that has not ended."""
        self.members: Members | None = None
        if job.regroups:
            self.members = Members(job, resources.board, resources.rings_nbytes, send, addresses)
        self.start_s = time.monotonic()
        self._attendance = Attendance.of(job)
        self._job = job
        self._roster = roster
        self._server = resources.server
        self._board = resources.board
        self._requests = requests
        self._deadline_s = deadline_s
        self._launch = launch
        self._restarts = restarts
        self.starting: set[int] = set()
        """Ranks with a new process that is not yet ready to join."""

    def begin(self, start_s: float) -> None:
        """Set the start of the run on the monotonic clock."""
        self.start_s = start_s
        if self.members is not None:
            self.members.begin(start_s)

    @property
    def generations(self) -> list[Generation]:
        """Generations of members. Empty without `min_workers`."""
        members = self.members or self._attendance
        return [] if members is None else members.generations.all

    def end_all(self) -> None:
        """Kill the workers. A rank that has sent its last message has no work left."""
        self._server.end(list(self.pids.values()))

    def life(self, rank: int) -> ProcessState:
        return life_of(self.pids[rank]) if rank in self.pids else ProcessState.GONE

    def is_stopped(self, rank: int) -> bool:
        """Return whether a signal has stopped the process of a rank."""
        return self.life(rank) is ProcessState.STOPPED

    # How a rank ended

    def finish(self, rank: int, outcome: Outcome) -> None:
        self._roster.outcomes[rank] = outcome
        self._set_status(rank, Status.FINISHED)
        self.settle_members()

    def fail(self, rank: int, failure: RunError) -> None:
        if isinstance(failure, DeadlineError):
            failure = explain(failure, self._board, self.life)
        self._roster.failures[rank] = failure
        self._set_status(rank, Status.LOST)

    def note_death(self, rank: int, cause: str, patience_s: float) -> None:
        """Record that a rank died, or end it if it does not end within `patience_s`."""
        step = self._board.step(rank)
        (ending,) = self._server.end([self.pids.pop(rank)], patience_s)
        self._read_journal(rank)
        self._roster.note_loss(rank, ending.in_words(step, cause), step)
        self._lose(rank)

    def cut_off(self, rank: int) -> None:
        """End a rank that cannot reach the driver. It would end itself on another host."""
        if self._roster.is_open(rank):
            reason = f"cut off from the driver for {patience_s(self._deadline_s):g} s"
            _log.warning("rank %d stops: it is %s", rank, reason)
            self._end(rank)
            step = self._board.step(rank)
            self._roster.note_loss(rank, reason, step)
            self._lose(rank)

    def may_leave_behind(self, rank: int) -> bool:
        return self._roster.is_open(rank) and self._job.can_lose(rank)

    def leave_behind(self, rank: int, fault: str = "did not reach the end of the run in time") -> None:
        """End a rank. The run continues, or is complete, without it."""
        step = self._board.step(rank)
        reason = f"it {self.life(rank)}, and {fault}"
        self._end(rank)
        self._roster.do_without(rank, reason, step)
        self._lose(rank)
        _log.warning("rank %d is left behind: %s", rank, reason)

    def end_stopped(self) -> bool:
        """End the ranks that are stopped by a signal. Return whether there are any."""
        stopped = [rank for rank in sorted(self.pids) if self.is_stopped(rank)]
        for rank in filter(self.may_leave_behind, stopped):
            self.leave_behind(rank, "made no progress in time")
        return bool(stopped)

    def _end(self, rank: int) -> None:
        self._server.end([self.pids.pop(rank)])
        self._read_journal(rank)

    def _read_journal(self, rank: int) -> None:
        """Read the journal of a rank that has ended."""
        for line in self._requests.told_by(rank):
            self._roster.note_news(rank, line)

    def _lose(self, rank: int) -> None:
        self._drop_member(rank)
        self._set_status(rank, Status.LOST)
        self.settle_members()
        self._restart(rank)

    def _set_status(self, rank: int, status: Status) -> None:
        self._board.set_status(rank, status)
        self._board.bells.ring_all()

    # Members

    def _drop_member(self, rank: int) -> None:
        """Go on without a rank, or end the run. Called before the others see that it is lost."""
        too_few = ""
        if self.members is not None and not self.members.is_over:
            too_few = self.members.lose(rank)
        elif self._attendance is not None and self._job.reporter not in self._roster.outcomes:
            step, now_s = self._board.step(self._job.reporter), time.monotonic() - self.start_s
            too_few = self._attendance.lose(rank, step, now_s)
        if too_few:
            self._roster.end_run(too_few)

    def settle_members(self) -> None:
        if self.members is None or self._roster.failures:
            return
        if self.members.settle(self._roster):
            self._requests.drop_boards()
        elif self.members.agreement.is_lost:
            self._roster.end_run(NO_STATE)

    def _restart(self, rank: int) -> None:
        """Start another process for a lost rank. The others continue until it is ready to join."""
        if rank in self.starting:
            self.starting.remove(rank)
            _log.warning("rank %d is not started again: it ended before it could join the run", rank)
        elif self._restarts:
            self._begin_anew(rank)

    def begin_one_anew(self) -> None:
        """Start another process for the lowest lost rank, if one is lost."""
        lost = [] if self.members is None else sorted(self.members.agreement.lost - self.starting)
        if lost:
            self._begin_anew(lost[0])

    def _begin_anew(self, rank: int) -> None:
        if self.members is None or self._roster.failures or self.members.is_over:
            return
        self.starting.add(rank)
        self._roster.begin_anew(rank)
        self._launch(rank)

    @property
    def step(self) -> int:
        """Step that the run is in."""
        return self._board.step(self._job.reporter if self.members is None else self.members.reporter)

    def _end_latecomers(self, members: Members) -> None:
        """At the end of the run, end new processes that have not become members."""
        if not all(rank in self._roster.outcomes for rank in members.agreement.members):
            return
        for rank in filter(self._roster.is_open, range(self._job.ranks)):
            self._server.end([self.pids.pop(rank)])
            self._roster.outcomes[rank] = Outcome(rank=rank)

    def check_members(self) -> None:
        """End members that are stopped while the others wait for them."""
        if self.members is None:
            return
        self._end_latecomers(self.members)
        for rank in self.members.stuck(self.is_stopped, self._deadline_s):
            self.leave_behind(rank, "did not stop its step in time")
        late = self.members.late(LIMIT * self._deadline_s)
        if late and not self._roster.failures:
            seen = f"rank {late[0]} {self.life(late[0])}"
            raise DeadlineError(-1, "a change of members", f"rank {late[0]}", LIMIT * self._deadline_s, seen)
