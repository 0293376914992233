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

from paceline import errors
from paceline.clusters import payload
from paceline.clusters.channel import Channel, ChannelClosed, Letter, decode
from paceline.clusters.control import Control, Status
from paceline.clusters.forkserver import ForkServer
from paceline.clusters.job import Job, Outcome
from paceline.clusters.worker import Assignment
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers
from paceline.errors import DeadlineError, PeerLost, RunError, TaskError
from paceline.links.memory import SharedMemory
from paceline.links.shared_memory import RingPort
from paceline.run import Progress
from paceline.task import user_code
from paceline.trace import Spans

__all__ = ["Crew"]

_GRACE_S = 1.0  # after a failure, how long the other ranks have to say what they were waiting for
_PROGRESS_S = 0.1


class Crew:
    """The worker processes of one run. As a context manager it ends them all, whatever happens."""

    def __init__(
        self, job: Job, stragglers: Stragglers, link: Link | None, deadline_s: float, threads: int
    ) -> None:
        self._job = job
        self._deadline_s = deadline_s
        self._store_fd = os.memfd_create("paceline-store", os.MFD_CLOEXEC)
        assignment = Assignment(
            job=job,
            stragglers=stragglers,
            link=link,
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
        self._rings = SharedMemory.create("rings", RingPort.nbytes(job.ranks))
        self._control = Control(self._memory, job.ranks)
        self._control.last_step = job.steps
        self._server = ForkServer.get()
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._windows: dict[str, SharedMemory] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._failures: dict[int, RunError] = {}
        self._losses: dict[int, PeerLost] = {}
        """Ranks that the run may go on without."""
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank, pid in self._pids.items():
            if rank not in self._outcomes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            self._server.exit_status(pid)
        for channel in self._channels.values():
            channel.close()
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
        for channel in self._channels.values():
            with contextlib.suppress(ChannelClosed):
                channel.send("go", {"start_s": start_s})
        while len(self._outcomes) < self._job.ranks:
            self._listen(_PROGRESS_S)
            if self._failures:
                self._end_in_failure()
            if progress is not None:
                self._show(progress)
        return [self._outcomes[rank] for rank in range(self._job.ranks)]

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
        self._ready: set[int] = set()
        deadline_s = time.monotonic() + max(self._deadline_s, 60.0)
        while len(self._ready) < self._job.ranks:
            self._listen(_PROGRESS_S)
            if self._failures:
                self._end_in_failure()
            if time.monotonic() > deadline_s:
                missing = sorted(set(range(self._job.ranks)) - self._ready)
                raise DeadlineError(-1, "starting", f"rank {', '.join(map(str, missing))}", self._deadline_s)

    # Listening

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            rank: int = key.data
            try:
                self._handle(rank, self._channels[rank].receive())
            except ChannelClosed:
                self._selector.unregister(self._channels[rank])
                if rank not in self._outcomes and rank not in self._failures:
                    self._note_death(rank)

    def _handle(self, rank: int, letter: Letter) -> None:
        if letter.word == "ready":
            self._ready.add(rank)
        elif letter.word == "window":
            self._give_window(rank, letter.values)
        elif letter.word == "done":
            self._outcomes[rank] = _read_outcome(letter)
            self._set_status(rank, Status.FINISHED)
        elif letter.word == "error":
            self._failures[rank] = _read_error(letter.values)
            self._set_status(rank, Status.LOST)

    def _give_window(self, rank: int, wanted: dict[str, Any]) -> None:
        window = self._windows.get(wanted["name"])
        if window is None:
            window = self._windows[wanted["name"]] = SharedMemory.create(wanted["name"], wanted["nbytes"])
        self._channels[rank].send("window", fds=[window.fd])

    def _set_status(self, rank: int, status: Status) -> None:
        self._control.set_status(rank, status)
        self._control.bells.ring_all()

    def _note_death(self, rank: int) -> None:
        status = self._server.exit_status(self._pids[rank])
        loss = PeerLost(rank, _how_it_ended(status, self._control.step(rank)))
        if self._job.can_lose(rank) and len(self._ready) == self._job.ranks:
            self._losses[rank] = loss
            self._outcomes[rank] = Outcome(rank=rank, lost=[(rank, self._control.step(rank))])
        else:
            self._failures[rank] = loss
        self._set_status(rank, Status.LOST)

    def _show(self, progress: Callable[[Progress], None]) -> None:
        step, loss, samples, seconds, metric = self._control.read_report()
        if step:
            progress(
                Progress(
                    step,
                    self._control.last_step,
                    loss,
                    samples,
                    seconds,
                    metric if metric == metric else None,
                    *self._control.slowest(self._job.workers),
                )
            )

    # Failing

    def _end_in_failure(self) -> None:
        """Raise the first failure. Where a rank was lost, first hear what the others were waiting for."""
        rank, cause = next(iter(self._failures.items()))
        if not isinstance(cause, PeerLost):
            raise cause
        if cause.rank in self._losses:  # one loss too many for the strategy
            raise PeerLost(cause.rank, self._losses[cause.rank].reason, cause.waiting)
        until_s = time.monotonic() + _GRACE_S
        while time.monotonic() < until_s and len(self._failures) + len(self._outcomes) < self._job.ranks:
            self._listen(_PROGRESS_S)
        # A rank may have noticed before the driver: the one that died is the cause, not the one that missed it.
        dead = [(r, e) for r, e in self._failures.items() if isinstance(e, PeerLost) and e.rank == r]
        rank, cause = dead[0] if dead else (rank, cause)
        waits = [
            e.waiting
            for r, e in self._failures.items()
            if r != rank and isinstance(e, PeerLost) and e.waiting
        ]
        others = [e for e in self._failures.values() if not isinstance(e, PeerLost)]
        if others:
            raise others[0]
        raise PeerLost(cause.rank, cause.reason, "; ".join(waits) or cause.waiting)


def _how_it_ended(status: int | None, step: int) -> str:
    if status is None:
        return f"its process ended in step {step}"
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name} in step {step} or later"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} in step {step} or later"


def _read_outcome(letter: Letter) -> Outcome:
    values = decode(letter.values["body"], letter.blobs)
    for name in ("losses", "bytes_over_time", "lost"):
        values[name] = [tuple(entry) for entry in values[name]]
    return Outcome(**values, spans=Spans.from_bytes(bytes(letter.blobs[-1])))


def _read_error(values: dict[str, Any]) -> RunError:
    kind: Any = getattr(errors, values["type"], RunError)
    error: RunError = kind(*values["args"])
    return error
