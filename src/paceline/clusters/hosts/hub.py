"""The driver's side of a run on several hosts: hears its ranks, keeps them informed, and puts their clocks together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from paceline.clusters import stopping
from paceline.clusters.hosts.clocks import EXCHANGES, Clock, Reading, one_clock
from paceline.clusters.hosts.hub_client import BEAT_S, patience_s
from paceline.clusters.hosts.hub_socket import HubSocket
from paceline.clusters.hosts.requests import Requests
from paceline.clusters.hosts.table import Table, whereabouts
from paceline.clusters.hosts.wire import ASKING, HEARING
from paceline.clusters.job import Consult, Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.process.blame import Life, explain
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.letters import (
    read_error,
    read_outcome,
    read_record,
    write_error,
    write_outcomes,
)
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.clusters.roster import Roster
from paceline.errors import DeadlineError, RunError
from paceline.links.memory import SharedMemory
from paceline.run import Progress

__all__ = ["Hub", "Launcher"]

_LISTEN_S = 0.1
_GRACE_S = 1.0  # how long the ranks have after a failure to say what they waited for, and to part
_SILENCE_S = 4 * BEAT_S  # who has not been heard for so long is stopped, or gone
_CLOCKS_S = 2.0  # how long the clocks are asked at most


class Launcher(Protocol):
    """Who started the ranks' processes."""

    def losses(self) -> Iterable[tuple[int, str]]:
        """The ranks whose processes have ended since it was last asked, and how."""
        ...


class Hub:
    """The middle of the run. It is in the driver; each rank reaches it by a `HubClient`."""

    def __init__(
        self,
        job: Job,
        *,
        bind: str,
        encrypt: bool,
        token: bytes,
        deadline_s: float,
        ports: range | None = None,
    ) -> None:
        self._job = job
        self._deadline_s = deadline_s
        self._socket = HubSocket(bind=bind, encrypt=encrypt, token=token, ports=ports)
        self.seat = self._socket.seat
        memory = SharedMemory.create("hub", StatusBoard.nbytes(job.ranks))
        memory.close_fd()  # only this process uses it
        self._board = StatusBoard(memory, job.ranks)
        self._board.last_step = job.steps
        self._roster = Roster(job)
        self._clocks = [Clock() for _ in range(job.ranks)]
        self._asked_at_end = False
        self._parted = self._shares = False
        self._stopped = threading.Event()
        self._heard_s: dict[int, float] = {}
        self._hearing: set[int] = set()
        self._leaving_s: dict[int, float] = {}
        """By rank, of those that say they have written how they ended: when a piece of that letter last arrived."""
        self._gone: set[int] = set()
        """Ranks that have heard the hub's last letter."""
        self._ears: dict[int, tuple[int, float]] = {}
        """How much of a letter each rank says it has heard, and since when that has not changed."""
        self._requests = Requests(job, self._board, self._tell)

    def stop(self) -> None:
        """From another thread: end `work` soon, whatever its state."""
        self._stopped.set()

    def give_up(self, error: Exception) -> None:
        """Let the ranks know why the run ends, if they do not know yet."""
        if not self._parted:
            self._part({"error": write_error(-1, -1, error)})

    def close(self) -> None:
        if self._parted:
            self._see_off()
        self._socket.close(linger_s=_GRACE_S)

    def work(
        self,
        table: Table,
        launcher: Launcher,
        progress: Callable[[Progress], None] | None,
        consult: Consult | None = None,
        *,
        share: bool = False,
    ) -> list[Outcome]:
        """Run the job to its end; raise what ended it early. The ranks' processes are on their way.

        `share`: let every rank know how all have ended, where each is a process of the user's own.
        """
        self._consult = consult
        self._table = table
        self._launcher = launcher
        self._requests.hosts = table.hosts
        self._socket.admit(table.keys)
        self._wait_until_ready()
        self._ask_clocks()
        self._go()
        while not self._roster.all_done:
            self._step()
            if stopping.wanted():
                self._tell(self._job.reporter, "stop")
            stopping.check()
            if progress is not None:
                self._board.show(progress, self._job.workers)
        self._asked_at_end = True
        self._ask_clocks()
        outcomes = [self._finished(rank) for rank in range(self._job.ranks)]
        outcomes[self._job.reporter].facts = table.facts()
        self._shares = share
        self._part(*(write_outcomes(outcomes) if share else ()))
        return outcomes

    def _go(self) -> None:
        start_s = time.monotonic()
        for rank, clock in enumerate(self._clocks):
            self._tell(rank, "go", {"start_s": start_s + clock.offset_s})

    def _part(self, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        self._parted = True
        for rank in range(self._job.ranks):
            self._tell(rank, "part", values, blobs)

    def _see_off(self) -> None:
        """Wait until the ranks have heard the hub's last letter, as long as they make progress.

        Closing a connection on which data still arrives discards what the other side has not read.
        """
        since_s = time.monotonic()
        # The outcomes of all ranks take their time.
        limit_s = self._deadline_s if self._shares else _GRACE_S
        while any(time.monotonic() - max(since_s, self._ears[r][1]) < limit_s for r in self._still_here()):
            self._listen(_LISTEN_S)

    def _still_here(self) -> list[int]:
        now_s, silent_s = time.monotonic(), patience_s(self._deadline_s)
        return [
            rank
            for rank in self._hearing - self._gone
            if self._board.status(rank) is not Status.LOST and now_s - self._heard_s[rank] < silent_s
        ]

    def _finished(self, rank: int) -> Outcome:
        outcome, clock = self._roster.outcomes[rank], self._clocks[rank]
        outcome.clock_residual_s = clock.residual_s
        if outcome.spans is not None:
            outcome.spans = one_clock(outcome.spans, clock)
        return outcome

    # Listening

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + self._job.start_s(self._deadline_s)
        # A rank whose thread has not been heard is not connected yet: ZeroMQ would drop a message to it.
        while not self._roster.all_ready or len(self._hearing) < self._job.ranks:
            self._step()
            if time.monotonic() > deadline_s:
                missing = ", ".join(f"{rank} on {self._table.name_of(rank)}" for rank in self._roster.missing)
                raise DeadlineError(-1, "starting", f"rank {missing}", self._deadline_s)

    def _step(self) -> None:
        """Listen for a moment; raise if the run cannot go on."""
        if self._stopped.is_set():
            raise RunError("the run was given up")
        self._listen(_LISTEN_S)
        self._look_for_the_lost()
        if self._roster.failures:
            if self._roster.others_may_say_more:
                until_s = time.monotonic() + _GRACE_S
                while time.monotonic() < until_s and not self._roster.all_heard:
                    self._listen(_LISTEN_S)
            cause = self._roster.cause()
            self._part({"error": write_error(-1, -1, cause)})
            raise cause

    def _listen(self, timeout_s: float) -> None:
        """Take the letters that are there, for so long at most; wait for one if there is none."""
        for rank, sender, letter in self._socket.receive(timeout_s):
            self._heard_s[rank] = now_s = time.monotonic()
            if rank in self._leaving_s and sender.startswith(ASKING):
                self._leaving_s[rank] = now_s
            if letter is not None:
                self._handle(rank, letter, sender)

    def _handle(self, rank: int, letter: Letter, sender: bytes) -> None:
        values = letter.values
        if letter.word == "beat":
            self._hearing.add(rank)
            self._note_beat(rank, values.pop("leaves"), values.pop("hears"))
            self._board.copy_own(rank, values, reports=rank == self._job.reporter)
            self._tell(rank, "beat")
        elif letter.word == "ping":
            reading = Reading(values["asked_s"], values["answer_s"], time.monotonic())
            self._clocks[rank].note(reading, at_end=self._asked_at_end)
            self._answered[rank] += 1
        elif letter.word == "part":
            self._gone.add(rank)
        elif letter.word == "ready":
            self._roster.ready.add(rank)
        elif letter.word == "done":
            self._roster.outcomes[rank] = read_outcome(values, letter.blobs)
            self._set_status(rank, Status.FINISHED)
        elif letter.word == "holds":
            self._roster.holds[rank] = values["words"]
        elif letter.word == "news":
            self._roster.note_news(rank, bytes(letter.blobs[0]))
        elif letter.word == "lost":
            self._give_up_on(values["rank"])
        elif letter.word == "record":
            assert self._consult is not None
            stops = self._consult(*read_record(values, letter.blobs))
            self._socket.send(sender, letter.word, {"request": values["request"], "stop": stops})
        elif letter.word == "error":
            failure = read_error(values)
            if isinstance(failure, DeadlineError):
                failure = explain(failure, self._board, self._life)
            self._roster.failures[rank] = failure
            self._set_status(rank, Status.LOST)
        else:
            self._requests.take(rank, letter, lambda v, b=(): self._socket.send(sender, letter.word, v, b))

    def _note_beat(self, rank: int, leaves: bool, heard_bytes: int) -> None:
        now_s = time.monotonic()
        if leaves:
            self._leaving_s.setdefault(rank, now_s)
        if self._ears.get(rank, (-1, now_s))[0] != heard_bytes:
            self._ears[rank] = (heard_bytes, now_s)

    def _tell(
        self, rank: int, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()
    ) -> None:
        self._socket.send(HEARING + str(rank).encode(), word, values, blobs)

    # Who is there

    def _set_status(self, rank: int, status: Status) -> None:
        self._board.set_status(rank, status)
        for other in range(self._job.ranks):
            if other != rank:
                self._tell(other, "status", {"rank": rank, "status": int(status)})
        if status is Status.LOST:
            self._requests.forget(rank)

    def _look_for_the_lost(self) -> None:
        for rank, reason in self._launcher.losses():
            self._note_loss(rank, reason)
        silent_s = patience_s(self._deadline_s)
        now_s = time.monotonic()
        for rank, heard_s in self._heard_s.items():
            if now_s - heard_s > silent_s:
                self._note_loss(rank, f"no sign of life for {silent_s:g} s")
        for rank, came_s in self._leaving_s.items():
            if now_s - came_s > self._deadline_s:
                self._note_loss(rank, f"how it ended did not arrive within {self._deadline_s:g} s")

    def _note_loss(self, rank: int, reason: str) -> None:
        if self._roster.is_open(rank):
            step = self._board.step(rank)
            self._roster.note_loss(rank, f"on host {self._table.name_of(rank)}: {reason}", step)
            self._set_status(rank, Status.LOST)

    def _give_up_on(self, rank: int) -> None:
        """A rank is late, and the run is done without it."""
        if self._job.can_lose(rank):
            self._note_loss(rank, "it did not come to the end of the run in time")

    def _life(self, rank: int) -> Life:
        heard_s = self._heard_s.get(rank, -math.inf)
        return Life.SILENT if time.monotonic() - heard_s > _SILENCE_S else Life.ASLEEP

    # Clocks

    def _ask_clocks(self) -> None:
        """Ask each rank that has another clock for the time, several times, one after the other."""
        self._answered = [0] * self._job.ranks
        until_s = time.monotonic() + _CLOCKS_S
        here = whereabouts().host
        away = [r for r, member in enumerate(self._table.members) if member.where.host != here]
        for rank in away:
            for exchange in range(EXCHANGES):
                if self._board.status(rank) is Status.LOST or time.monotonic() > until_s:
                    break
                self._tell(rank, "ping", {"asked_s": time.monotonic()})
                while self._answered[rank] <= exchange and time.monotonic() < until_s:
                    self._listen(_LISTEN_S)
