"""The driver's side of a local run: starts the workers, listens to them, and leaves nothing behind."""

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

from paceline.clusters import stopping
from paceline.clusters.job import Consult
from paceline.clusters.local.forkserver import ForkServer
from paceline.clusters.local.interrupts import interrupts_heard, interrupts_kept
from paceline.clusters.local.open_files import enough_open_files
from paceline.clusters.local.preloading import TRACER, installed_modules
from paceline.clusters.local.requests import REQUESTS, Requests
from paceline.clusters.local.worker import Assignment
from paceline.clusters.outcome import Outcome
from paceline.clusters.process.blame import Life, explain, life_of
from paceline.clusters.process.channel import Channel, ChannelClosed, ChannelStalled, Letter
from paceline.clusters.process.letters import read_error, read_outcome, read_record
from paceline.clusters.process.payload import NOT_SENT, Packed
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.clusters.process.wiring import open_status_board
from paceline.clusters.roster import Roster
from paceline.errors import DeadlineError
from paceline.links.bells import SocketBells
from paceline.links.memory import SharedMemory
from paceline.links.shared_memory import RingWays
from paceline.run import Progress
from paceline.user_code import user_code

__all__ = ["Processes"]

_log = logging.getLogger("paceline")

_GRACE_S = 1.0  # how long a silent rank has to end, and the others to say what they were waiting for
_PROGRESS_S = 0.1
LETTER_S = 30.0  # how long a rank may let a letter wait that it has half written or half read


class Processes:
    """The worker processes of one run. As a context manager it ends them all, whatever happens."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._job = assignment.job
        self._network = assignment.network
        self._deadline_s = assignment.deadline_s
        self._roster = Roster(assignment.job)
        self._seats: dict[int, Any] = {}
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._requests = Requests()

    def __enter__(self) -> Processes:
        with contextlib.ExitStack() as stack:
            stack.enter_context(interrupts_kept())
            stack.enter_context(enough_open_files(self._job.ranks))
            stack.callback(self._let_go)
            self._open(stack)
            # One callback each: an interrupt that ends the wait for the workers' end must not keep files open.
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
        with user_code(NOT_SENT), interrupts_heard():
            packed = Packed(assignment)
        packed.say_what_is_copied()
        self._payload = packed.store()
        stack.callback(self._payload.close_fd)
        self._memory = SharedMemory.create("board", StatusBoard.nbytes(ranks))
        stack.callback(self._memory.close_fd)
        self._rings = SharedMemory.create("rings", RingWays.nbytes(ranks))
        stack.callback(self._rings.close_fd)
        self._board = open_status_board(self._memory, ranks, self._network)
        if isinstance(self._board.bells, SocketBells):
            stack.callback(self._board.bells.close)
        self._board.last_step = self._job.steps
        self._selector = stack.enter_context(selectors.DefaultSelector())
        modules = installed_modules(packed.pickled)
        if getattr(self._job.strategy, "cuts_model", False):
            modules.append(TRACER)
        self._server = ForkServer.get_with(modules)

    def _end_workers(self) -> None:
        """Kill first: a rank that has written its last letter has nothing left to do."""
        self._server.end(list(self._pids.values()))

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _let_go(self) -> None:
        """Drop everything now: an error's traceback keeps this object, and each mapping holds a descriptor."""
        vars(self).clear()

    def work(
        self, progress: Callable[[Progress], None] | None, consult: Consult | None = None
    ) -> list[Outcome]:
        """Run the job to its end; raise what ended it early."""
        self._consult = consult
        for rank in range(self._job.ranks):
            self._launch(rank)
        self._wait_until_ready()
        self._give_time()
        self._go()
        while not self._roster.all_done:
            self._listen(_PROGRESS_S)
            if self._roster.failures:
                self._end_in_failure()
            self._check_the_late()
            self._board.stop = stopping.wanted()
            stopping.check()
            if progress is not None:
                self._show(progress)
        return [self._roster.outcomes[rank] for rank in range(self._job.ranks)]

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
        missing = self._roster.missing
        # Who is stopped prepares nothing: there is no reason to be as patient as with who does.
        stopped = [rank for rank in missing if self._life(rank) is Life.STOPPED]
        late, limit_s = (stopped, self._deadline_s) if stopped else (missing, patience_s)
        if late and took_s > limit_s:
            seen = f"rank {late[0]} {self._life(late[0])}"
            raise DeadlineError(-1, "starting", f"rank {', '.join(map(str, late))}", limit_s, seen)

    def _go(self) -> None:
        values = {"start_s": time.monotonic(), "seats": [self._seats[rank] for rank in sorted(self._seats)]}
        for rank in self._channels:
            self._send(rank, "go", values)

    # Writing and listening

    def _send(
        self, rank: int, word: str, values: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> None:
        try:
            with interrupts_heard():
                self._channels[rank].send(word, values, fds=fds)
        except ChannelStalled as stalled:
            self._note_silence(rank, stalled)
        except ChannelClosed:
            pass  # whoever reads from it will notice that, after the letters that it had written before

    def _listen(self, timeout_s: float) -> None:
        with interrupts_heard():
            heard = self._selector.select(timeout_s)
        for key, _ in heard:
            rank: int = key.data
            try:
                with interrupts_heard():
                    letter = self._channels[rank].receive()
            except ChannelClosed as closed:
                self._note_silence(rank, closed)
            else:
                self._give_time()
                self._handle(rank, letter)

    def _handle(self, rank: int, letter: Letter) -> None:
        if letter.word == "ready":
            self._roster.ready.add(rank)
            if "seat" in letter.values:
                self._seats[rank] = letter.values["seat"]
        elif letter.word in REQUESTS:
            values, fds = self._requests.answer(rank, letter)
            self._send(rank, letter.word, values, fds=fds)
        elif letter.word == "record":
            self._show_record(rank, letter)
        elif letter.word == "done":
            self._roster.outcomes[rank] = read_outcome(letter.values, letter.blobs)
            self._set_status(rank, Status.FINISHED)
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

    def _life(self, rank: int) -> Life:
        return life_of(self._pids[rank]) if rank in self._pids else Life.GONE

    def _show(self, progress: Callable[[Progress], None]) -> None:
        shown: list[Progress] = []
        self._board.show(shown.append, self._job.workers)
        # Not inside `show`: an error of the user's code would hold the board's memory by its traceback.
        for each in shown:
            with interrupts_heard():
                progress(each)

    def _show_record(self, rank: int, letter: Letter) -> None:
        assert self._consult is not None
        with interrupts_heard():
            stops = self._consult(*read_record(letter.values, letter.blobs))
        self._send(rank, "record", {"stop": stops})

    def _set_status(self, rank: int, status: Status) -> None:
        self._board.set_status(rank, status)
        self._board.bells.ring_all()

    def _note_silence(self, rank: int, closed: ChannelClosed) -> None:
        """Nothing more will be heard from a rank."""
        with contextlib.suppress(KeyError):  # it was noted before, when a letter could not be sent
            self._selector.unregister(self._channels[rank])
        if self._roster.is_open(rank):
            self._note_death(rank, closed)

    def _note_death(self, rank: int, closed: ChannelClosed) -> None:
        step = self._board.step(rank)
        patience_s = 0.0 if isinstance(closed, ChannelStalled) else _GRACE_S
        (ending,) = self._server.end([self._pids.pop(rank)], patience_s)
        self._read_journal(rank)
        self._roster.note_loss(rank, ending.in_words(step, str(closed)), step)
        self._set_status(rank, Status.LOST)

    def _read_journal(self, rank: int) -> None:
        """Of a rank that is gone."""
        for line in self._requests.told_by(rank):
            self._roster.note_news(rank, line)

    # Who is late

    def _give_time(self) -> None:
        # A rank that waits for another should say so first.
        self._patient_until_s = time.monotonic() + self._deadline_s + 2 * _GRACE_S

    def _check_the_late(self) -> None:
        """Where no rank waits for those that are left, the driver does."""
        late = [rank for rank in range(self._job.ranks) if self._roster.is_open(rank)]
        is_complete = self._job.reporter in self._roster.outcomes
        if not is_complete and not all(self._life(rank) is Life.STOPPED for rank in late):
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

    def _leave_behind(self, rank: int) -> None:
        """The run is done without this rank."""
        step = self._board.step(rank)
        reason = f"it {self._life(rank)}, and did not come to the end of the run in time"
        self._server.end([self._pids.pop(rank)])
        self._read_journal(rank)
        self._roster.do_without(rank, reason, step)
        self._set_status(rank, Status.LOST)
        _log.warning("rank %d is left behind: %s", rank, reason)

    def _end_in_failure(self) -> None:
        """Raise the first failure. Where a rank was lost, first hear what the others were waiting for."""
        if self._roster.others_may_say_more:
            until_s = time.monotonic() + _GRACE_S
            while time.monotonic() < until_s and not self._roster.all_heard:
                self._listen(_PROGRESS_S)
        raise self._roster.cause()
