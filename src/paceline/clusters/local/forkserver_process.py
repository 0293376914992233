"""The fork server process: imports the modules that workers need, then forks workers on request."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

from paceline.clusters.local.preloading import import_all
from paceline.clusters.process.channel import Channel, ChannelClosed
from paceline.clusters.process.offspring import dies_with_parent

ANSWER_S = 30.0  # timeout to fork a worker, or to end all workers of a run
DEATH_S = 5.0  # a killed process ends in milliseconds, unless it hangs in the kernel
_PARENT_S = 1.0  # how often a server checks that its driver is alive


def can_read(channel: Channel, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def serve(fd: int, driver: int) -> NoReturn:
    """Run the server: import the modules that workers need, then fork on request until the driver has ended."""
    # Torch imports its compiler when the first optimizer is built. That takes as long as importing torch itself.
    import torch._dynamo  # noqa: F401

    import paceline.clusters.local.worker as worker

    channel = Channel(socket.socket(fileno=fd), ANSWER_S)
    gc.collect()
    gc.freeze()  # otherwise the garbage collector of a child would write to every page, and so copy it
    with contextlib.suppress(ChannelClosed):
        channel.send("ready")
        while os.getppid() == driver:
            if can_read(channel, _PARENT_S):
                channel.send("answer", _answer(channel, worker.main))
    os._exit(0)


def _answer(channel: Channel, main: Callable[[Channel], None]) -> dict[str, Any]:
    try:
        letter = channel.receive()
        if letter.word == "fork":
            return {"pid": _fork(letter.fds[0], main)}
        if letter.word == "import":
            values = letter.values
            return {"threads": import_all(values["modules"], values["path"], values["environment"])}
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
    """End the workers. Return the status of each one, and whether it had to be killed."""
    statuses: dict[int, int | None] = {}
    _reap(pids, statuses, patience_s)
    killed = [pid for pid in pids if pid not in statuses]
    for pid in killed:  # the process id is not reused before the process is reaped
        os.kill(pid, signal.SIGKILL)
    _reap(killed, statuses, DEATH_S)
    return [(statuses.get(pid), pid in killed and statuses.get(pid) == signal.SIGKILL) for pid in pids]


def _reap(pids: list[int], statuses: dict[int, int | None], patience_s: float) -> None:
    """Store the statuses of processes that end within the timeout."""
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
    """Return the wait status. None if it is not a child of this process, or was reaped before."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found else _RUNNING


def _become_worker(server: int, fd: int, main: Callable[[Channel], None]) -> NoReturn:
    code = 1
    try:
        # The worker must not outlive the server. If the server has died before the signal was set, the worker exits
        # here.
        if dies_with_parent(server):
            main(Channel(socket.socket(fileno=fd)))
            code = 0
    finally:
        os._exit(code)
