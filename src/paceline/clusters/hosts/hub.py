"""Driver side of a run on several hosts: receives from the ranks, informs them, and synchronizes their clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from paceline.clusters.base.job import Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.base.roster import Roster
from paceline.clusters.base.silence import patience_s
from paceline.clusters.hosts.clocks import ClockExchange, on_one_clock
from paceline.clusters.hosts.hub_client import BEAT_S
from paceline.clusters.hosts.hub_socket import HubSocket, Sender
from paceline.clusters.hosts.presence import Presence
from paceline.clusters.hosts.requests import Requests
from paceline.clusters.hosts.table import Table, whereabouts
from paceline.clusters.process.awaited_work import AwaitedWork
from paceline.clusters.process.blame import ProcessState, explain
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.letters import (
    read_error,
    read_outcome,
    read_record,
    write_error,
    write_outcomes,
)
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import DeadlineError, RunError
from paceline.links.memory.shared import SharedMemory
from paceline.links.tcp.handshake import Channel
from paceline.runs.run import Progress
from paceline.system import interrupts, stopping

_LISTEN_S = 0.1
_GRACE_S = 1.0  # time for the ranks after a failure to report what they waited for, and to disconnect
_SILENCE_S = 4 * BEAT_S  # a rank that sends nothing for this time is stopped or has ended


class Launcher(Protocol):
    """Interface of the launcher that started the ranks' processes."""

    def losses(self) -> Iterable[tuple[int, str]]:
        """Return the ranks that have ended since the last call, with a reason for each."""
        ...


class Hub:
    """Center of the run, in the driver. Each rank connects to it with a `HubClient`."""

    def __init__(
        self,
        job: Job,
        *,
        run_id: bytes,
        bind: str,
        encrypt: bool,
        token: bytes,
        deadline_s: float,
        ports: range | None = None,
    ) -> None:
        self._job = job
        self._deadline_s = deadline_s
        self._socket = HubSocket(run_id=run_id, bind=bind, encrypt=encrypt, token=token, ports=ports)
        self.address = self._socket.address
        memory = SharedMemory.create("hub", StatusBoard.nbytes(job.ranks))
        memory.close_fd()  # only this process uses it
        self._board = StatusBoard(memory, job.ranks)
        self._board.last_step = job.steps
        self._work = AwaitedWork(self._board, deadline_s)
        self._roster = Roster(job)
        self._clocks = ClockExchange(job.ranks)
        self._parted = self._shares = False
        self._stopped = threading.Event()
        self.active_s = time.monotonic()
        """When the hub's thread last listened, on the monotonic clock."""
        self._presence = Presence(deadline_s)
        self._requests = Requests(job, self._board, self._tell)

    def stop(self) -> None:
        """Make `work` return soon, in any state. Called from another thread."""
        self._stopped.set()

    def give_up(self, error: Exception) -> None:
        """Send the ranks the reason for the end of the run, if it has not been sent yet."""
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
        """Run the job to its end. Raise the error that ended it early. The processes of the ranks may still be
        starting.

        With `share`, every rank receives the outcomes of all ranks. Used if each rank is a process of the user.
        """
        self._consult = consult
        self._table = table
        self._launcher = launcher
        self._requests.hosts = table.hosts
        self._socket.admit(table.certificates)
        self._wait_until_ready()
        self._ask_clocks()
        self._go()
        while not self._roster.all_done:
            self._step()
            if self._work.is_due():
                self._work.look()
            if stopping.wanted():
                self._tell(self._job.reporter, "stop")
            stopping.check()
            if progress is not None:
                self._board.show(progress, self._job.workers)
        self._ask_clocks(at_end=True)
        clocks = self._clocks.clocks
        outcomes = [on_one_clock(self._roster.outcomes[rank], clock) for rank, clock in enumerate(clocks)]
        outcomes[self._job.reporter].facts = table.facts()
        self._shares = share
        self._part(*(write_outcomes(outcomes) if share else ()))
        return outcomes

    def _go(self) -> None:
        for rank in range(self._job.ranks):
            # A rank that connected later has not received this message yet.
            if self._board.status(rank) is Status.LOST:
                self._tell_status(rank, Status.LOST)
        start_s = time.monotonic()
        for rank, clock in enumerate(self._clocks.clocks):
            self._tell(rank, "go", {"start_s": start_s + clock.offset_s})

    def _part(self, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        self._parted = True
        for rank in range(self._job.ranks):
            self._tell(rank, "part", values, blobs)

    def _see_off(self) -> None:
        """Wait until the ranks have received the hub's last message, as long as they make progress.

        Closing a connection while data still arrives discards data that the other side has not read.
        """
        since_s = time.monotonic()
        # Sending the outcomes of all ranks may take long.
        limit_s = self._deadline_s if self._shares else _GRACE_S
        received_s = self._presence.received_s
        while any(time.monotonic() - max(since_s, received_s(rank)) < limit_s for rank in self._still_here()):
            self._listen(_LISTEN_S)

    def _still_here(self) -> list[int]:
        here = self._presence.still_here(patience_s(self._deadline_s))
        return [rank for rank in here if self._board.status(rank) is not Status.LOST]

    # Messages

    def _wait_until_ready(self) -> None:
        began_s = time.monotonic()
        while self._unheard() or self._roster.missing:
            self._step()
            self._check_start(time.monotonic() - began_s)

    def _unheard(self) -> list[int]:
        """Return the ranks that have not connected. A message to them would be dropped."""
        connected = self._presence.connected
        return [r for r in range(self._job.ranks) if r not in connected and self._roster.is_open(r)]

    def _check_start(self, took_s: float) -> None:
        """Check the start. A rank must connect within `deadline_s`. Then it sends heartbeats, and may import or trace
        longer."""
        unheard = self._unheard()
        limit_s = self._deadline_s if unheard else self._job.start_s(self._deadline_s)
        if took_s <= limit_s:
            return
        for rank in filter(self._job.can_lose, unheard):
            self._note_loss(rank, f"it did not connect within {limit_s:g} s")
        late = [rank for rank in unheard or self._roster.missing if self._roster.is_open(rank)]
        if late:
            names = ", ".join(f"{rank} on {self._table.name_of(rank)}" for rank in late)
            raise DeadlineError(-1, "starting", f"rank {names}", limit_s)

    def _step(self) -> None:
        """Listen for a short time. Raise an error if the run cannot continue."""
        interrupts.safe_point()
        if self._stopped.is_set():
            raise RunError("the run was aborted")
        self._listen(_LISTEN_S)
        self._look_for_the_lost()
        if self._roster.failures:
            cause = self._roster.cause_after(lambda: self._listen(_LISTEN_S), _GRACE_S)
            self._part({"error": write_error(-1, -1, cause)})
            raise cause

    def _listen(self, timeout_s: float) -> None:
        """Handle the messages that have arrived. Wait up to `timeout_s` if there are none."""
        self.active_s = time.monotonic()
        for sender, letter in self._socket.receive(timeout_s):
            self._presence.note_message(sender.rank, asks=sender.channel is Channel.ASK)
            if letter is not None:
                self._handle(sender.rank, letter, sender)

    def _handle(self, rank: int, letter: Letter, sender: Sender) -> None:
        values = letter.values
        if self._board.status(rank) is Status.LOST and letter.word not in ("beat", "part"):
            return  # the run continues without this rank, and ignores its updates and errors
        if letter.word == "beat":
            leaves, received_bytes = values.pop("leaves"), values.pop("hears")
            self._presence.note_beat(rank, leaves=leaves, received_bytes=received_bytes)
            self._board.copy_own(rank, values, reports=rank == self._job.reporter)
            self._tell(rank, "beat", {"awaited_work": self._board.awaited_work(rank)})
        elif letter.word == "ping":
            self._clocks.note(rank, values["asked_s"], values["answer_s"])
        elif letter.word == "part":
            self._presence.note_gone(rank)
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

    def _tell(
        self, rank: int, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()
    ) -> None:
        self._socket.send(Sender(rank, Channel.HEAR), word, values, blobs)

    # Liveness

    def _set_status(self, rank: int, status: Status) -> None:
        self._board.set_status(rank, status)
        self._tell_status(rank, status)
        if status is Status.LOST:
            self._requests.forget(rank)

    def _tell_status(self, rank: int, status: Status) -> None:
        for other in range(self._job.ranks):
            if other != rank:
                self._tell(other, "status", {"rank": rank, "status": int(status)})

    def _look_for_the_lost(self) -> None:
        for rank, reason in self._launcher.losses():
            self._note_loss(rank, reason)
        for rank in self._socket.disconnected(_GRACE_S):
            self._note_loss(rank, "its connections to the driver were closed")
        for rank, reason in self._presence.lost(patience_s(self._deadline_s)):
            self._note_loss(rank, reason)

    def _note_loss(self, rank: int, reason: str) -> None:
        if self._roster.is_open(rank):
            step = self._board.step(rank)
            self._roster.note_loss(rank, f"on host {self._table.name_of(rank)}: {reason}", step)
            self._set_status(rank, Status.LOST)

    def _give_up_on(self, rank: int) -> None:
        """Handle a late rank that the run can complete without."""
        if self._job.can_lose(rank):
            self._note_loss(rank, "it did not reach the end of the run in time")

    def _life(self, rank: int) -> ProcessState:
        if self._presence.silent_s(rank) > _SILENCE_S:
            return ProcessState.SILENT
        return ProcessState.RUNNABLE if self._work.has_worked(rank) else ProcessState.ASLEEP

    # Clocks

    def _ask_clocks(self, *, at_end: bool = False) -> None:
        """Exchange the time with each rank on another host."""
        here = whereabouts().host
        away = [r for r, member in enumerate(self._table.members) if member.where.host != here]
        for rank in self._clocks.asked(away, at_end=at_end):
            if self._board.status(rank) is not Status.LOST:
                self._tell(rank, "ping", {"asked_s": time.monotonic()})
                while self._clocks.awaits(rank):
                    self._listen(_LISTEN_S)
