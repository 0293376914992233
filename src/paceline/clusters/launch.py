"""The driver's side of a local run: starts the workers, listens to them, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from paceline.clusters import payload
from paceline.clusters.channel import Channel, ChannelClosed, Letter
from paceline.clusters.control import Control, Status
from paceline.clusters.forkserver import ForkServer
from paceline.clusters.job import Job, Outcome
from paceline.clusters.letters import read_error, read_outcome
from paceline.clusters.roll import Roll
from paceline.clusters.wiring import Network, open_control
from paceline.clusters.worker import Assignment
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers
from paceline.errors import DeadlineError, TaskError
from paceline.links.memory import SharedMemory
from paceline.links.shared_memory import RingWays
from paceline.run import Progress
from paceline.task import user_code

__all__ = ["Crew"]

_GRACE_S = 1.0  # after a failure, how long the other ranks have to say what they were waiting for
_PROGRESS_S = 0.1


class Crew:
    """The worker processes of one run. As a context manager it ends them all, whatever happens."""

    def __init__(
        self,
        job: Job,
        stragglers: Stragglers,
        link: Link | None,
        network: Network | None,
        deadline_s: float,
        threads: int,
    ) -> None:
        self._job = job
        self._deadline_s = deadline_s
        self._store_fd = os.memfd_create("paceline-store", os.MFD_CLOEXEC)
        assignment = Assignment(
            job=job,
            stragglers=stragglers,
            link=link,
            network=network,
            deadline_s=deadline_s,
            threads=threads,
            store_path=f"/proc/{os.getpid()}/fd/{self._store_fd}",
        )
        try:
            with user_code("the task cannot be sent to worker processes"):
                self._payload = payload.store(assignment)
        except TaskError:
            os.close(self._store_fd)
            raise
        self._memory = SharedMemory.create("control", Control.nbytes(job.ranks))
        self._rings = SharedMemory.create("rings", RingWays.nbytes(job.ranks))
        self._control = open_control(self._memory, job.ranks, network)
        self._seats: dict[int, Any] = {}
        self._control.last_step = job.steps
        self._server = ForkServer.get()
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._windows: dict[str, SharedMemory] = {}
        self._roll = Roll(job)
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank, pid in self._pids.items():
            if rank not in self._roll.outcomes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for channel in self._channels.values():
            channel.close()  # those who have ended their programs may wait for this
        for pid in self._pids.values():
            self._server.exit_status(pid)
        self._selector.close()
        for memory in (self._memory, self._rings, self._payload, *self._windows.values()):
            memory.close_fd()
        os.close(self._store_fd)

    def work(self, progress: Callable[[Progress], None] | None) -> list[Outcome]:
        """Run the job to its end; raise what ended it early."""
        for rank in range(self._job.ranks):
            self._launch(rank)
        self._wait_until_ready()
        start_s = time.monotonic()
        seats = [self._seats[rank] for rank in sorted(self._seats)]
        for channel in self._channels.values():
            with contextlib.suppress(ChannelClosed):
                channel.send("go", {"start_s": start_s, "seats": seats})
        while not self._roll.all_done:
            self._listen(_PROGRESS_S)
            if self._roll.failures:
                self._end_in_failure()
            if progress is not None:
                self._control.show(progress, self._job.workers)
        return [self._roll.outcomes[rank] for rank in range(self._job.ranks)]

    # Starting

    def _launch(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        self._pids[rank] = self._server.fork(theirs)
        theirs.close()
        channel = self._channels[rank] = Channel(ours)
        values = {
            "rank": rank,
            "payload_bytes": self._payload.nbytes,
            "path": sys.path,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        }
        channel.send("launch", values, fds=[self._payload.fd, self._memory.fd, self._rings.fd])
        self._selector.register(channel, selectors.EVENT_READ, rank)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + max(self._deadline_s, 60.0)
        while not self._roll.all_ready:
            self._listen(_PROGRESS_S)
            if self._roll.failures:
                self._end_in_failure()
            if time.monotonic() > deadline_s:
                missing = ", ".join(map(str, self._roll.missing))
                raise DeadlineError(-1, "starting", f"rank {missing}", self._deadline_s)

    # Listening

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            rank: int = key.data
            try:
                self._handle(rank, self._channels[rank].receive())
            except ChannelClosed as closed:
                self._selector.unregister(self._channels[rank])
                if self._roll.is_open(rank):
                    self._note_death(rank, str(closed))

    def _handle(self, rank: int, letter: Letter) -> None:
        if letter.word == "ready":
            self._roll.ready.add(rank)
            if "seat" in letter.values:
                self._seats[rank] = letter.values["seat"]
        elif letter.word == "window":
            self._give_window(rank, letter.values)
        elif letter.word == "done":
            self._roll.outcomes[rank] = read_outcome(letter.values, letter.blobs)
            self._set_status(rank, Status.FINISHED)
        elif letter.word == "error":
            self._roll.failures[rank] = read_error(letter.values)
            self._set_status(rank, Status.LOST)

    def _give_window(self, rank: int, wanted: dict[str, Any]) -> None:
        window = self._windows.get(wanted["name"])
        if window is None:
            window = self._windows[wanted["name"]] = SharedMemory.create(wanted["name"], wanted["nbytes"])
        self._channels[rank].send("window", fds=[window.fd])

    def _set_status(self, rank: int, status: Status) -> None:
        self._control.set_status(rank, status)
        self._control.bells.ring_all()

    def _note_death(self, rank: int, when: str) -> None:
        """`when` it stopped talking to us."""
        step = self._control.step(rank)
        status = self._server.exit_status(self._pids[rank])
        self._roll.note_loss(rank, _how_it_ended(status, step, when), step)
        self._set_status(rank, Status.LOST)

    def _end_in_failure(self) -> None:
        """Raise the first failure. Where a rank was lost, first hear what the others were waiting for."""
        if self._roll.others_may_say_more:
            until_s = time.monotonic() + _GRACE_S
            while time.monotonic() < until_s and not self._roll.all_heard:
                self._listen(_PROGRESS_S)
        raise self._roll.cause()


def _how_it_ended(status: int | None, step: int, when: str) -> str:
    if status is None:
        return f"its process ended in step {step}"
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name} in step {step} or later"
    code = os.waitstatus_to_exitcode(status)
    return f"its process ended with exit code {code} in step {step} or later, {when}"
