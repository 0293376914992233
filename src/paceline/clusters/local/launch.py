"""Driver side of a local run: starts the workers, handles their messages, and cleans up."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from paceline.clusters.base.job import Consult
from paceline.clusters.base.outcome import Outcome, reporter_of
from paceline.clusters.base.roster import Roster
from paceline.clusters.local.fault_injector import FaultInjector
from paceline.clusters.local.mail import Mail
from paceline.clusters.local.open_files import enough_open_files
from paceline.clusters.local.ranks import GRACE_S, Ranks
from paceline.clusters.local.requests import REQUESTS, Requests
from paceline.clusters.local.resources import Resources
from paceline.clusters.local.worker import Assignment
from paceline.clusters.process.awaited_work import LIMIT, AwaitedWork, processor_ns
from paceline.clusters.process.channel import ChannelClosed, ChannelStalled, Letter
from paceline.clusters.process.letters import read_error, read_outcome, read_record
from paceline.errors import DeadlineError
from paceline.runs.run import Progress
from paceline.system import interrupts, stopping

_PROGRESS_S = 0.1
LETTER_S = 30.0


class Processes:
    """Worker processes of one run. The context manager ends them all in every case."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._job = assignment.job
        self._deadline_s = assignment.deadline_s
        self._roster = Roster(assignment.job)
        self._addresses: dict[int, Any] = {}
        self._requests = Requests()

    def __enter__(self) -> Processes:
        with contextlib.ExitStack() as stack:
            stack.enter_context(interrupts.protected())
            stack.enter_context(enough_open_files(self._job.ranks))
            stack.callback(self._drop_attributes)
            self._open(stack)
            # One callback each: an interrupt during the wait for the workers must not leave files open.
            stack.callback(self._requests.close)
            stack.callback(self._ranks.end_all)
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def _open(self, stack: contextlib.ExitStack) -> None:
        self._resources = resources = Resources(self._assignment, stack)
        self._board = resources.board  # not a local variable: the traceback of an error would hold its memory
        self._board.last_step = self._job.steps
        self._ranks = Ranks(
            self._job,
            self._roster,
            resources,
            self._requests,
            self._send,
            self._deadline_s,
            addresses=self._addresses,
            launch=partial(self._launch, joins=True),
            restarts=self._assignment.restart,
        )
        stack.callback(vars(self._ranks).clear)
        self._faults = FaultInjector(self._assignment.faults, self._ranks.pids.get, self._deadline_s)
        self._work = AwaitedWork(self._board, self._deadline_s)
        self._mail = Mail(LETTER_S)
        stack.callback(self._mail.close)

    def _drop_attributes(self) -> None:
        """Drop all attributes now: an error's traceback may hold this object, and each mapping holds a descriptor."""
        vars(self).clear()

    def work(
        self, progress: Callable[[Progress], None] | None, consult: Consult | None = None
    ) -> list[Outcome]:
        """Run the job to its end. Raise the error that ended it early."""
        self._consult = consult
        for rank in range(self._job.ranks):
            self._launch(rank)
        self._wait_until_ready()
        self._give_time()
        self._go()
        while not self._roster.all_done:
            self._listen(max(0.0, min(_PROGRESS_S, self._faults.send_due())))
            if self._roster.failures:
                self._end_in_failure()
            self._look_at_work()
            self._ranks.check_members()
            for rank in self._faults.unreachable():
                self._ranks.cut_off(rank)
            for _ in range(self._faults.joins_due(self._ranks.step)):
                self._ranks.begin_one_anew()
            self._check_the_late()
            self._board.stop = stopping.wanted()
            stopping.check()
            if progress is not None:
                self._show(progress)
        outcomes = self._roster.all_outcomes()
        reporter_of(self._job, outcomes).generations = self._ranks.generations
        return outcomes

    # Starting

    def _launch(self, rank: int, *, joins: bool = False) -> None:
        shared = self._resources
        with self._mail.open(rank) as theirs:
            self._ranks.pids[rank] = shared.server.fork(theirs)
        values = {
            "rank": rank,
            "joins": joins,
            "payload_bytes": shared.payload.nbytes,
            "path": sys.path,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        }
        self._send(rank, "launch", values, fds=[shared.payload.fd, shared.memory.fd, shared.rings.fd])

    def _wait_until_ready(self) -> None:
        patience_s, began_s = self._job.start_s(self._deadline_s), time.monotonic()
        while not self._roster.all_ready:
            self._listen(_PROGRESS_S)
            if self._roster.failures:
                self._end_in_failure()
            took_s = time.monotonic() - began_s
            if took_s > self._deadline_s:
                self._check_start(took_s, patience_s)

    def _check_start(self, took_s: float, patience_s: float) -> None:
        # A process stopped by a signal makes no progress: it has the short deadline. Others may be importing or
        # tracing.
        stopped = [rank for rank in self._roster.missing if self._ranks.is_stopped(rank)]
        for rank in filter(self._ranks.may_leave_behind, stopped):
            self._ranks.leave_behind(rank, "was not ready in time")
        stopped = [rank for rank in stopped if self._roster.is_open(rank)]
        late, limit_s = (stopped, self._deadline_s) if stopped else (self._roster.missing, patience_s)
        if late and took_s > limit_s:
            seen = f"rank {late[0]} {self._ranks.life(late[0])}"
            raise DeadlineError(-1, "starting", f"rank {', '.join(map(str, late))}", limit_s, seen)

    def _go(self) -> None:
        addresses = [self._addresses.get(rank) for rank in range(self._job.ranks)]
        values: dict[str, Any] = {"start_s": time.monotonic(), "addresses": addresses}
        for rank in self._mail.ranks:
            self._send(rank, "go", values)
        self._faults.begin(values["start_s"])
        self._ranks.begin(values["start_s"])

    # Messages

    def _send(
        self, rank: int, word: str, values: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> None:
        try:
            self._mail.send(rank, word, values, fds)
        except ChannelStalled as stalled:
            self._note_silence(rank, stalled)
        except ChannelClosed:
            pass  # the next read reports it, after the messages that the rank had sent before

    def _listen(self, timeout_s: float) -> None:
        interrupts.safe_point()
        for rank, letter in self._mail.receive(timeout_s):
            if isinstance(letter, ChannelClosed):
                self._note_silence(rank, letter)
            else:
                self._give_time()
                self._handle(rank, letter)

    def _handle(self, rank: int, letter: Letter) -> None:
        if not self._roster.is_open(rank):
            return  # the rank was abandoned, and sent this before it was ended
        if letter.word == "ready":
            self._roster.ready.add(rank)
            if rank in self._ranks.starting:
                self._send(rank, "go", {"start_s": self._ranks.start_s})
            if "address" in letter.values:
                self._addresses[rank] = letter.values["address"]
        elif letter.word in REQUESTS:
            values, fds = self._requests.answer(rank, letter)
            self._send(rank, letter.word, values, fds=fds)
        elif letter.word == "pause":
            self._faults.pause(rank, letter.values["seconds"])
            self._send(rank, "pause")
        elif letter.word == "record":
            self._show_record(rank, letter)
        elif letter.word == "done":
            self._ranks.finish(rank, read_outcome(letter.values, letter.blobs))
        elif letter.word == "meet" and self._ranks.members is not None:
            self._ranks.starting.discard(rank)
            self._ranks.members.arrive(rank, letter.values)
            self._ranks.settle_members()
        elif letter.word == "late":
            self._send(rank, "late", {"ended": self._ranks.end_stopped()})
        elif letter.word == "holds":
            self._roster.holds[rank] = letter.values["words"]
        elif letter.word == "lost" and self._ranks.may_leave_behind(letter.values["rank"]):
            self._ranks.leave_behind(letter.values["rank"])
        elif letter.word == "error":
            self._ranks.fail(rank, read_error(letter.values))

    def _show(self, progress: Callable[[Progress], None]) -> None:
        shown: list[Progress] = []
        self._board.show(shown.append, self._job.workers)
        # Not inside `show`: the traceback of an error in the user's code would hold the board's memory.
        for each in shown:
            with interrupts.unprotected():
                progress(each)

    def _show_record(self, rank: int, letter: Letter) -> None:
        assert self._consult is not None
        with interrupts.unprotected():
            stops = self._consult(*read_record(letter.values, letter.blobs))
        self._send(rank, "record", {"stop": stops})

    def _note_silence(self, rank: int, closed: ChannelClosed) -> None:
        """Handle a rank that will send no more messages."""
        self._mail.drop(rank)
        if self._roster.is_open(rank):
            self._ranks.note_death(rank, str(closed), 0.0 if isinstance(closed, ChannelStalled) else GRACE_S)

    # Late ranks

    def _give_time(self) -> None:
        # A rank that waits for another one should report it first.
        now_s = time.monotonic()
        self._patient_until_s = now_s + self._deadline_s + 2 * GRACE_S
        self._most_patient_until_s = now_s + LIMIT * self._deadline_s + 2 * GRACE_S

    def _look_at_work(self) -> None:
        """Publish which ranks compute. Also wait longer for the end of those that no other rank waits for."""
        if not self._work.is_due():
            return
        for rank, pid in self._ranks.pids.items():
            self._board.set_processor_ns(rank, processor_ns(pid))
        self._work.look()
        if any(self._work.has_worked(rank) for rank in range(self._job.ranks) if self._roster.is_open(rank)):
            until_s = time.monotonic() + self._deadline_s + 2 * GRACE_S
            self._patient_until_s = min(until_s, self._most_patient_until_s)

    def _check_the_late(self) -> None:
        """Check the remaining ranks, if no other rank waits for them."""
        late = [rank for rank in range(self._job.ranks) if self._roster.is_open(rank)]
        members = self._ranks.members
        is_complete = self._job.reporter in self._roster.outcomes if members is None else members.is_over
        if not is_complete and not all(self._ranks.is_stopped(rank) for rank in late):
            self._give_time()
        elif time.monotonic() > self._patient_until_s:
            for rank in late:
                if not is_complete or self._job.task is None:  # there is no model to return without it
                    seen = f"rank {rank} {self._ranks.life(rank)}"
                    error = DeadlineError(-1, "the end of the run", f"rank {rank}", self._deadline_s, seen)
                    raise self._roster.named(error)
                self._ranks.leave_behind(rank)

    def _end_in_failure(self) -> None:
        """Raise the first failure. If a rank was lost, first wait for the others' reports of what they waited for."""
        raise self._roster.cause_after(lambda: self._listen(_PROGRESS_S), GRACE_S)
