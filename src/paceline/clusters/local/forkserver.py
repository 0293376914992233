"""Driver side of the fork server: a process that has imported torch, so that it forks workers in milliseconds.

The server lives as long as its driver, and its workers die with it. It never runs a torch operation, because a fork
would break torch's thread pool.

A server answers one request after the other. If its driver stops waiting for an answer (Ctrl-C, a stopped server),
the driver could mistake that answer for a later one. So the server is killed, and the next run starts another one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.clusters.local.forkserver_process import ANSWER_S, DEATH_S, can_read
from paceline.clusters.local.preloading import THREADS_VARIABLE
from paceline.clusters.process.channel import Channel, ChannelClosed, ChannelStalled
from paceline.clusters.process.offspring import PR_SET_PDEATHSIG
from paceline.errors import RunError
from paceline.system import interrupts

START_S = 300.0  # timeout to import torch, which takes minutes from a cold network file system

_POLL_S = 0.1  # how often a wait checks for an interrupt

# The kernel's parent-death signal kills a server even if it is stopped, or still imports torch. But the kernel sends it
# when the thread that started the server ends. So only a driver's main thread requests it: it ends with the process.
_BOOT = f"""
import ctypes, json, os, signal, sys
path, fd, driver, dies_with_thread = json.loads(sys.argv[1])
if dies_with_thread:
    ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != driver:
    os._exit(1)
sys.path[:] = path
from paceline.clusters.local.forkserver_process import serve
serve(fd, driver)
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker's process ended."""

    status: int | None = None
    """Status from `os.waitpid`. None if the server does not have it."""
    was_killed: bool = False
    """Whether the server killed it because it did not end by itself."""

    def in_words(self, step: int, when: str) -> str:
        """Return a description for users.

        The worker ended in step `step` or later; `when` is the time of its last message.
        """
        if self.was_killed:
            return (
                f"it stopped sending in step {step} or later, {when}; its process was alive, and was killed"
            )
        if self.status is None:
            return f"its process ended in step {step}"
        if os.WIFSIGNALED(self.status):
            return f"killed by {signal.Signals(os.WTERMSIG(self.status)).name} in step {step} or later"
        code = os.waitstatus_to_exitcode(self.status)
        return f"its process ended with exit code {code} in step {step} or later, {when}"


class ForkServer:
    """Driver side of a fork server. One server is used for all runs of a process."""

    _current: ForkServer | None = None
    _retired: ClassVar[list[ForkServer]] = []
    _starting_threads: ClassVar[set[str]] = set()
    """Modules that a server must not import: they start threads, and a process with threads cannot be forked."""
    _lock = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = _start(theirs.fileno())
        self._channel = Channel(ours, ANSWER_S)
        self._owner = os.getpid()
        self._has_started = False
        self._is_in_step = True
        self._imported: set[str] = set()
        self._workers: set[int] = set()

    @classmethod
    def get_with(cls, modules: Iterable[str]) -> ForkServer:
        """Return the server of this process. It has imported these modules, except those that start threads."""
        server = cls.get()
        missing = set(modules) - server._imported - cls._starting_threads
        if not missing or server._import(sorted(missing)):
            return server
        cls._starting_threads |= missing
        with cls._exclusive():
            if cls._current is server:
                cls._current = None
                cls._retired.append(server)
                server._end_if_idle()
        return cls.get()

    @classmethod
    def get(cls) -> ForkServer:
        """Return the server of this process. It is started on first use, or when the last one died."""
        with cls._exclusive():
            server = cls._current
            if server is None or not server._is_alive():
                if server is not None:
                    server._end()
                server = cls._current = cls()
            return server

    def fork(self, endpoint: socket.socket) -> int:
        """Fork a worker that communicates through `endpoint`. Return its process id."""
        try:
            answer = self._ask("fork", {}, [endpoint.fileno()])
        except ChannelStalled as stalled:
            raise RunError(
                f"the fork server stopped answering ({stalled}) and was killed; {_REMEDY}"
            ) from None
        except ChannelClosed:
            raise RunError(f"the fork server died; {_REMEDY}") from None
        if "error" in answer:
            raise RunError(f"the fork server cannot start a worker: {answer['error']}")
        pid = int(answer["pid"])
        self._workers.add(pid)
        return pid

    def end(self, pids: Sequence[int], patience_s: float = 0.0) -> list[Ending]:
        """Wait until these workers have ended, and reap them. Kill those that do not end in time."""
        try:
            answer = self._ask("end", {"pids": list(pids), "patience_s": patience_s}, [])
        except ChannelClosed:  # the server is dead, and its workers died with it
            return [Ending()] * len(pids)
        self._workers.difference_update(pids)
        self._end_if_idle()
        return [Ending(*ending) for ending in answer["endings"]]

    def _import(self, modules: list[str]) -> bool:
        """Import modules in the server. Return whether it can still fork workers afterwards."""
        values = {"modules": modules, "path": sys.path, "environment": dict(os.environ)}
        try:
            answer = self._ask("import", values, [], START_S)
        except ChannelClosed:
            return False
        self._imported.update(modules)
        return bool(answer["threads"] <= 0)

    @classmethod
    @contextlib.contextmanager
    def _exclusive(cls) -> Iterator[None]:
        while not cls._lock.acquire(timeout=_POLL_S):
            interrupts.safe_point()
        try:
            yield
        finally:
            cls._lock.release()

    def _ask(
        self, word: str, values: dict[str, Any], fds: list[int], patience_s: float | None = None
    ) -> dict[str, Any]:
        with self._exclusive():
            if not self._is_alive():
                raise ChannelClosed
            self._is_in_step = False
            try:
                if not self._has_started:
                    self._wait_for_answer(START_S)
                    self._has_started = True
                self._channel.send(word, values, fds=fds)
                answer = self._wait_for_answer(ANSWER_S if patience_s is None else patience_s)
                self._is_in_step = True
                return answer
            finally:
                if not self._is_in_step:
                    self._end()

    def _wait_for_answer(self, patience_s: float) -> dict[str, Any]:
        until_s = time.monotonic() + patience_s
        interrupts.safe_point()
        while not can_read(self._channel, _POLL_S):
            interrupts.safe_point()
            if time.monotonic() > until_s:
                raise ChannelStalled(f"for {patience_s:g} s")
        return self._channel.receive().values

    def _is_alive(self) -> bool:
        return self._owner == os.getpid() and self._is_in_step and self._process.poll() is None

    def _end_if_idle(self) -> None:
        """End a retired server if it has no workers. A run in another thread may still use its workers."""
        if self in self._retired and not self._workers:
            self._retired.remove(self)
            self._end()

    def _end(self) -> None:
        """Kill the server and its workers. It has no work to finish."""
        if self._owner != os.getpid():
            return
        self._is_in_step = False
        self._process.kill()
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)


_REMEDY = "the next run will start a new one"


def _start(fd: int) -> subprocess.Popen[bytes]:
    dies_with_thread = threading.get_native_id() == os.getpid()
    # Each worker sets its own number of threads later.
    environment = {THREADS_VARIABLE: "1", **os.environ}
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps([sys.path, fd, os.getpid(), dies_with_thread])],
        pass_fds=(fd,),
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # the driver handles Ctrl-C in the terminal
    )


@atexit.register
def _end_at_exit() -> None:
    for server in (*ForkServer._retired, ForkServer._current):
        if server is not None:
            server._end()


def _forget_in_child() -> None:
    """Forget all servers: a forked child starts its own.

    At the fork, another thread may have held the lock. That thread does not exist in the child.
    """
    servers = [*ForkServer._retired, ForkServer._current]
    ForkServer._current, ForkServer._lock = None, threading.Lock()
    ForkServer._retired.clear()
    for server in servers:
        if server is not None:
            # The true exit code is unknown here. Without one, Popen would warn about a running process.
            server._process.returncode = 0


os.register_at_fork(after_in_child=_forget_in_child)
