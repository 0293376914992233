"""Driver side of a local run: starts the workers, handles their messages, and cleans up."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from paceline.clusters.base.generations import Attendance
from paceline.clusters.base.job import Consult
from paceline.clusters.base.outcome import Outcome, reporter_of
from paceline.clusters.base.roster import Roster
from paceline.clusters.local.fault_injector import FaultInjector
from paceline.clusters.local.forkserver import ForkServer
from paceline.clusters.local.members import Members
from paceline.clusters.local.open_files import enough_open_files
from paceline.clusters.local.preloading import IDENTITY, TRACER, installed_modules
from paceline.clusters.local.requests import REQUESTS, Requests
from paceline.clusters.local.worker import Assignment
from paceline.clusters.process.awaited_work import LIMIT, AwaitedWork, processor_ns
from paceline.clusters.process.blame import ProcessState, explain, life_of
from paceline.clusters.process.channel import Channel, ChannelClosed, ChannelStalled, Letter
from paceline.clusters.process.letters import read_error, read_outcome, read_record
from paceline.clusters.process.payload import NOT_SENT, Packed
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.clusters.process.wiring import open_status_board
from paceline.errors import DeadlineError
from paceline.links.memory.bells import SocketBells
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import SharedMemory
from paceline.links.shared_links import nbytes_of
from paceline.runs.run import Progress
from paceline.system import interrupts, stopping
from paceline.system.user_code import user_code

_log = logging.getLogger("paceline")

_GRACE_S = 1.0  # time for a lost rank to end, and for the others to report what they waited for
_PROGRESS_S = 0.1
LETTER_S = 30.0  # timeout for the rest of a message that a rank has partly written or read


class Processes:
    """Worker processes of one run. The context manager ends them all in every case."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._job = assignment.job
        self._network = assignment.network
        self._deadline_s = assignment.deadline_s
        self._roster = Roster(assignment.job)
        self._start_s = time.monotonic()
        self._addresses: dict[int, Any] = {}
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._requests = Requests()
        self._faults = FaultInjector(assignment.faults, self._pids.get)

    def __enter__(self) -> Processes:
        with contextlib.ExitStack() as stack:
            stack.enter_context(interrupts.protected())
            stack.enter_context(enough_open_files(self._job.ranks))
            stack.callback(self._drop_attributes)
            self._open(stack)
            # One callback each: an interrupt during the wait for the workers must not leave files open.
            stack.callback(self._requests.close)
            stack.callback(self._close_channels)
            stack.callback(self._end_workers)
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def _open(self, stack: contextlib.ExitStack) -> None:
        ranks = self._job.ranks
        store_fd = os.memfd_create("paceline-store", os.MFD_CLOEXEC)
        stack.callback(os.close, store_fd)
        store_path = f"/proc/{os.getpid()}/fd/{store_fd}"
        assignment = dataclasses.replace(self._assignment, store_path=store_path)
        with user_code(NOT_SENT), interrupts.unprotected():
            packed = Packed(assignment)
        packed.say_what_is_copied()
        self._payload = packed.store()
        stack.callback(self._payload.close_fd)
        self._memory = SharedMemory.create("board", StatusBoard.nbytes(ranks))
        stack.callback(self._memory.close_fd)
        rings_nbytes = RingWays.nbytes(ranks) + nbytes_of(self._assignment.fabric)
        self._rings = SharedMemory.create("rings", rings_nbytes)
        stack.callback(self._rings.close_fd)
        self._board = open_status_board(self._memory, ranks, self._network)
        if isinstance(self._board.bells, SocketBells):
            stack.callback(self._board.bells.close)
        self._board.last_step = self._job.steps
        regroups = self._job.regroups
        self._members = Members(self._job, self._board, rings_nbytes, self._send) if regroups else None
        self._attendance = Attendance.of(self._job)
        self._work = AwaitedWork(self._board, self._deadline_s)
        self._selector = stack.enter_context(selectors.DefaultSelector())
        modules = installed_modules(packed.pickled)
        if getattr(self._job.strategy, "cuts_model", False):
            modules.append(TRACER)
        if self._network is not None and self._network.encrypt:
            modules.append(IDENTITY)
        self._server = ForkServer.get_with(modules)

    def _end_workers(self) -> None:
        """Kill the workers. A rank that has sent its last message has no work left."""
        self._server.end(list(self._pids.values()))

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()

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
            if self._members is not None:
                self._check_members(self._members)
            self._check_the_late()
            self._board.stop = stopping.wanted()
            stopping.check()
            if progress is not None:
                self._show(progress)
        outcomes = [self._roster.outcomes[rank] for rank in range(self._job.ranks)]
        members = self._members or self._attendance
        if members is not None:
            reporter_of(self._job, outcomes).generations = members.generations.all
        return outcomes

    # Starting

    def _launch(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        channel = self._channels[rank] = Channel(ours, LETTER_S)
        with theirs:
            self._pids[rank] = self._server.fork(theirs)
        self._selector.register(channel, selectors.EVENT_READ, rank)
        values = {
            "rank": rank,
            "payload_bytes": self._payload.nbytes,
            "path": sys.path,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        }
        self._send(rank, "launch", values, fds=[self._payload.fd, self._memory.fd, self._rings.fd])

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
        stopped = [rank for rank in self._roster.missing if self._life(rank) is ProcessState.STOPPED]
        for rank in filter(self._may_leave_behind, stopped):
            self._leave_behind(rank, "was not ready in time")
        stopped = [rank for rank in stopped if self._roster.is_open(rank)]
        late, limit_s = (stopped, self._deadline_s) if stopped else (self._roster.missing, patience_s)
        if late and took_s > limit_s:
            seen = f"rank {late[0]} {self._life(late[0])}"
            raise DeadlineError(-1, "starting", f"rank {', '.join(map(str, late))}", limit_s, seen)

    def _go(self) -> None:
        addresses = [self._addresses.get(rank) for rank in range(self._job.ranks)]
        values: dict[str, Any] = {"start_s": time.monotonic(), "addresses": addresses}
        for rank in self._channels:
            self._send(rank, "go", values)
        self._start_s = values["start_s"]
        self._faults.begin(self._start_s)
        if self._members is not None:
            self._members.begin(values["start_s"])

    # Messages

    def _send(
        self, rank: int, word: str, values: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> None:
        try:
            with interrupts.unprotected():
                self._channels[rank].send(word, values, fds=fds)
        except ChannelStalled as stalled:
            self._note_silence(rank, stalled)
        except ChannelClosed:
            pass  # the next read reports it, after the messages that the rank had sent before

    def _listen(self, timeout_s: float) -> None:
        interrupts.safe_point()
        heard = self._selector.select(timeout_s)
        for key, _ in heard:
            rank: int = key.data
            try:
                with interrupts.unprotected():
                    letter = self._channels[rank].receive()
            except ChannelClosed as closed:
                self._note_silence(rank, closed)
            else:
                self._give_time()
                self._handle(rank, letter)

    def _handle(self, rank: int, letter: Letter) -> None:
        if not self._roster.is_open(rank):
            return  # the rank was abandoned, and sent this before it was ended
        if letter.word == "ready":
            self._roster.ready.add(rank)
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
            self._roster.outcomes[rank] = read_outcome(letter.values, letter.blobs)
            self._set_status(rank, Status.FINISHED)
            self._settle_members()
        elif letter.word == "meet" and self._members is not None:
            self._members.arrive(rank, letter.values)
            self._settle_members()
        elif letter.word == "late":
            self._send(rank, "late", {"ended": self._end_stopped()})
        elif letter.word == "holds":
            self._roster.holds[rank] = letter.values["words"]
        elif letter.word == "lost" and self._may_leave_behind(letter.values["rank"]):
            self._leave_behind(letter.values["rank"])
        elif letter.word == "error":
            failure = read_error(letter.values)
            if isinstance(failure, DeadlineError):
                failure = explain(failure, self._board, self._life)
            self._roster.failures[rank] = failure
            self._set_status(rank, Status.LOST)

    def _life(self, rank: int) -> ProcessState:
        return life_of(self._pids[rank]) if rank in self._pids else ProcessState.GONE

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

    def _set_status(self, rank: int, status: Status) -> None:
        self._board.set_status(rank, status)
        self._board.bells.ring_all()

    def _note_silence(self, rank: int, closed: ChannelClosed) -> None:
        """Handle a rank that will send no more messages."""
        with contextlib.suppress(KeyError):  # noted before, when a message could not be sent
            self._selector.unregister(self._channels[rank])
        if self._roster.is_open(rank):
            self._note_death(rank, closed)

    def _note_death(self, rank: int, closed: ChannelClosed) -> None:
        step = self._board.step(rank)
        patience_s = 0.0 if isinstance(closed, ChannelStalled) else _GRACE_S
        (ending,) = self._server.end([self._pids.pop(rank)], patience_s)
        self._read_journal(rank)
        self._roster.note_loss(rank, ending.in_words(step, str(closed)), step)
        self._drop_member(rank)
        self._set_status(rank, Status.LOST)
        self._settle_members()

    def _read_journal(self, rank: int) -> None:
        """Read the journal of a rank that has ended."""
        for line in self._requests.told_by(rank):
            self._roster.note_news(rank, line)

    # Late ranks

    def _give_time(self) -> None:
        # A rank that waits for another one should report it first.
        now_s = time.monotonic()
        self._patient_until_s = now_s + self._deadline_s + 2 * _GRACE_S
        self._most_patient_until_s = now_s + LIMIT * self._deadline_s + 2 * _GRACE_S

    def _look_at_work(self) -> None:
        """Publish which ranks compute. Also wait longer for the end of those that no other rank waits for."""
        if not self._work.is_due():
            return
        for rank, pid in self._pids.items():
            self._board.set_processor_ns(rank, processor_ns(pid))
        self._work.look()
        if any(self._work.has_worked(rank) for rank in range(self._job.ranks) if self._roster.is_open(rank)):
            until_s = time.monotonic() + self._deadline_s + 2 * _GRACE_S
            self._patient_until_s = min(until_s, self._most_patient_until_s)

    def _check_the_late(self) -> None:
        """Check the remaining ranks, if no other rank waits for them."""
        late = [rank for rank in range(self._job.ranks) if self._roster.is_open(rank)]
        is_complete = (
            self._job.reporter in self._roster.outcomes if self._members is None else self._members.is_over
        )
        if not is_complete and not all(self._life(rank) is ProcessState.STOPPED for rank in late):
            self._give_time()
        elif time.monotonic() > self._patient_until_s:
            for rank in late:
                if not is_complete or self._job.task is None:  # there is no model to return without it
                    seen = f"rank {rank} {self._life(rank)}"
                    error = DeadlineError(-1, "the end of the run", f"rank {rank}", self._deadline_s, seen)
                    raise self._roster.named(error)
                self._leave_behind(rank)

    def _may_leave_behind(self, rank: int) -> bool:
        return self._roster.is_open(rank) and self._job.can_lose(rank)

    def _leave_behind(self, rank: int, fault: str = "did not reach the end of the run in time") -> None:
        """End a rank. The run continues, or is complete, without it."""
        step = self._board.step(rank)
        reason = f"it {self._life(rank)}, and {fault}"
        self._server.end([self._pids.pop(rank)])
        self._read_journal(rank)
        self._roster.do_without(rank, reason, step)
        self._drop_member(rank)
        self._set_status(rank, Status.LOST)
        self._settle_members()
        _log.warning("rank %d is left behind: %s", rank, reason)

    # Members

    def _drop_member(self, rank: int) -> None:
        """Go on without a rank, or end the run. Called before the others see that it is lost."""
        too_few = ""
        if self._members is not None and not self._members.is_over:
            too_few = self._members.lose(rank)
        elif self._attendance is not None and self._job.reporter not in self._roster.outcomes:
            step, now_s = self._board.step(self._job.reporter), time.monotonic() - self._start_s
            too_few = self._attendance.lose(rank, step, now_s)
        if too_few:
            self._roster.end_run(rank, too_few)

    def _settle_members(self) -> None:
        if self._members is None or self._roster.failures:
            return
        if self._members.settle(self._roster.outcomes):
            self._requests.drop_boards()

    def _check_members(self, members: Members) -> None:
        """End members that are stopped while the others wait for them."""
        for rank in members.stuck(self._is_stopped, self._deadline_s):
            self._leave_behind(rank, "did not stop its step in time")
        late = members.late(LIMIT * self._deadline_s)
        if late and not self._roster.failures:
            seen = f"rank {late[0]} {self._life(late[0])}"
            raise DeadlineError(-1, "a change of members", f"rank {late[0]}", LIMIT * self._deadline_s, seen)

    def _end_stopped(self) -> bool:
        """End the ranks that are stopped by a signal. Return whether there are any."""
        stopped = [rank for rank in sorted(self._pids) if self._is_stopped(rank)]
        for rank in filter(self._may_leave_behind, stopped):
            self._leave_behind(rank, "made no progress in time")
        return bool(stopped)

    def _is_stopped(self, rank: int) -> bool:
        return self._life(rank) is ProcessState.STOPPED

    def _end_in_failure(self) -> None:
        """Raise the first failure. If a rank was lost, first wait for the others' reports of what they waited for."""
        if self._roster.others_may_say_more:
            until_s = time.monotonic() + _GRACE_S
            while time.monotonic() < until_s and not self._roster.all_heard:
                self._listen(_PROGRESS_S)
        raise self._roster.cause()
