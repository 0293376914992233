"""A process that has imported torch and forks workers from that state: a worker starts in milliseconds, not seconds.

It lives as long as its driver, and its workers die with it. It never runs a torch operation itself, so that no thread
pool exists that a fork would break.

A server answers one request after the other. If its driver gives up waiting for an answer (Ctrl-C, a server that is
stopped), the two are out of step: the server is killed, and the next run starts another.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from paceline.clusters.local.interrupts import interrupts_heard
from paceline.clusters.process.channel import Channel, ChannelClosed, ChannelStalled
from paceline.clusters.process.offspring import PR_SET_PDEATHSIG, dies_with_parent
from paceline.errors import RunError

__all__ = ["Ending", "ForkServer", "serve"]

START_S = 300.0  # how long a server may take to import torch: minutes, from a cold network file system
ANSWER_S = 30.0  # how long it may take to fork a worker, or to end all of a run
_DEATH_S = 5.0  # a process that was killed is gone in milliseconds, unless it hangs in the kernel
_PARENT_S = 1.0  # how often a server looks whether its driver is still there

# The kernel's parent-death signal kills a server even if it is stopped, or still imports torch. But it comes when the
# thread ends that started the server. So only a driver's main thread asks for it: that one ends with the process.
_BOOT = f"""
import ctypes, json, os, signal, sys
path, fd, driver, dies_with_thread = json.loads(sys.argv[1])
if dies_with_thread:
    ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != driver:
    os._exit(1)
sys.path[:] = path
from paceline.clusters.local.forkserver import serve
serve(fd, driver)
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker's process ended."""

    status: int | None = None
    """As `os.waitpid` tells it; None if the server does not know."""
    was_killed: bool = False
    """By the server, because it did not end by itself."""

    def in_words(self, step: int, when: str) -> str:
        """For people: it ended in this step or later. `when` says when it was last heard."""
        if self.was_killed:
            return (
                f"it fell silent in step {step} or later, {when}; its process was still there, and was killed"
            )
        if self.status is None:
            return f"its process ended in step {step}"
        if os.WIFSIGNALED(self.status):
            return f"killed by {signal.Signals(os.WTERMSIG(self.status)).name} in step {step} or later"
        code = os.waitstatus_to_exitcode(self.status)
        return f"its process ended with exit code {code} in step {step} or later, {when}"


class ForkServer:
    """The driver's side. One serves all runs of a process."""

    _current: ForkServer | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = _start(theirs.fileno())
        self._channel = Channel(ours, ANSWER_S)
        self._owner = os.getpid()
        self._has_started = False
        self._is_in_step = True

    @classmethod
    def get(cls) -> ForkServer:
        """The server of this process, started when first needed (or when the last one died)."""
        with cls._exclusive():
            server = cls._current
            if server is None or not server._is_alive():
                if server is not None:
                    server._end()
                server = cls._current = cls()
            return server

    def fork(self, endpoint: socket.socket) -> int:
        """Fork a worker that talks through `endpoint`; return its process number."""
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
        return int(answer["pid"])

    def end(self, pids: Sequence[int], patience_s: float = 0.0) -> list[Ending]:
        """Wait until these workers have ended, and reap them. Kill those that do not end by themselves in time."""
        try:
            answer = self._ask("end", {"pids": list(pids), "patience_s": patience_s}, [])
        except ChannelClosed:  # the server is dead, and its workers died with it
            return [Ending()] * len(pids)
        return [Ending(*ending) for ending in answer["endings"]]

    @classmethod
    @contextlib.contextmanager
    def _exclusive(cls) -> Iterator[None]:
        while not cls._lock.acquire(timeout=0.1):
            with interrupts_heard():
                pass
        try:
            yield
        finally:
            cls._lock.release()

    def _ask(self, word: str, values: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        with self._exclusive():
            if not self._is_alive():
                raise ChannelClosed
            self._is_in_step = False
            try:
                if not self._has_started:
                    self._wait_for_answer(START_S)
                    self._has_started = True
                self._channel.send(word, values, fds=fds)
                answer = self._wait_for_answer(ANSWER_S)
                self._is_in_step = True
                return answer
            finally:
                if not self._is_in_step:
                    self._end()

    def _wait_for_answer(self, patience_s: float) -> dict[str, Any]:
        with interrupts_heard():
            has_come = _can_read(self._channel, patience_s)
        if not has_come:
            raise ChannelStalled(f"for {patience_s:g} s")
        return self._channel.receive().values

    def _is_alive(self) -> bool:
        return self._owner == os.getpid() and self._is_in_step and self._process.poll() is None

    def _end(self) -> None:
        """Kill it, and its workers with it. There is nothing that it would have to finish."""
        if self._owner != os.getpid():
            return
        self._is_in_step = False
        self._process.kill()
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_S)


_REMEDY = "the next run will start a new one"


def _start(fd: int) -> subprocess.Popen[bytes]:
    dies_with_thread = threading.get_native_id() == os.getpid()
    # The thread pools of numerical libraries are sized when they are loaded; each worker sets its own later.
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps([sys.path, fd, os.getpid(), dies_with_thread])],
        pass_fds=(fd,),
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is the driver's to handle
    )


@atexit.register
def _end_at_exit() -> None:
    if ForkServer._current is not None:
        ForkServer._current._end()


def _forget_in_child() -> None:
    """A forked child starts a server of its own. The lock may have been held by a thread that is not in the child."""
    server, ForkServer._current, ForkServer._lock = ForkServer._current, None, threading.Lock()
    if server is not None:
        # The true one is not known here. Without any, Popen would warn of a process that is still running.
        server._process.returncode = 0


os.register_at_fork(after_in_child=_forget_in_child)


def _can_read(channel: Channel, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def serve(fd: int, driver: int) -> NoReturn:
    """The server's side: import what workers need, then fork on demand, until the driver is gone."""
    # Torch imports its compiler when the first optimizer is built, which takes as long again as torch itself.
    import torch._dynamo  # noqa: F401

    import paceline.clusters.local.worker as worker

    channel = Channel(socket.socket(fileno=fd), ANSWER_S)
    gc.collect()
    gc.freeze()  # or else the children's collector would touch, and so copy, every page
    with contextlib.suppress(ChannelClosed):
        channel.send("ready")
        while os.getppid() == driver:
            if _can_read(channel, _PARENT_S):
                channel.send("answer", _answer(channel, worker.main))
    os._exit(0)


def _answer(channel: Channel, main: Callable[[Channel], None]) -> dict[str, Any]:
    try:
        letter = channel.receive()
        if letter.word == "fork":
            return {"pid": _fork(letter.fds[0], main)}
        return {"endings": _end_workers(**letter.values)}
    except OSError as error:  # too many processes, or too many files
        return {"error": str(error)}


def _fork(fd: int, main: Callable[[Channel], None]) -> int:
    server = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _become_worker(server, fd, main)
        return pid
    finally:
        os.close(fd)


def _end_workers(pids: list[int], patience_s: float) -> list[tuple[int | None, bool]]:
    """How each ended, and whether it had to be killed."""
    statuses: dict[int, int | None] = {}
    _reap(pids, statuses, patience_s)
    killed = [pid for pid in pids if pid not in statuses]
    for pid in killed:  # its number cannot have been given to another process before it is reaped
        os.kill(pid, signal.SIGKILL)
    _reap(killed, statuses, _DEATH_S)
    return [(statuses.get(pid), pid in killed and statuses.get(pid) == signal.SIGKILL) for pid in pids]


def _reap(pids: list[int], statuses: dict[int, int | None], patience_s: float) -> None:
    """Note the statuses of those that end in time."""
    until_s = time.monotonic() + patience_s
    while True:
        for pid in pids:
            if pid not in statuses and (status := _status(pid)) != _RUNNING:
                statuses[pid] = status
        if all(pid in statuses for pid in pids) or time.monotonic() > until_s:
            return
        time.sleep(0.001)


_RUNNING = -1


def _status(pid: int) -> int | None:
    """None: not a child of this process, or reaped before."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found else _RUNNING


def _become_worker(server: int, fd: int, main: Callable[[Channel], None]) -> NoReturn:
    code = 1
    try:
        # The worker must not outlive the server. If the server died before the signal was set, it is too late already.
        if dies_with_parent(server):
            main(Channel(socket.socket(fileno=fd)))
            code = 0
    finally:
        os._exit(code)
