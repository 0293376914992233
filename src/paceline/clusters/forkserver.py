"""A process that has imported torch and forks workers from that state: a worker starts in milliseconds, not seconds.

It lives as long as its driver: it ends when its channel closes, however the driver went, and its workers die with it.
It never runs a torch operation itself, so that no thread pool exists that a fork would break.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from paceline.clusters.channel import Channel, ChannelClosed
from paceline.errors import RunError

__all__ = ["ForkServer"]

_PR_SET_PDEATHSIG = 1
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from paceline.clusters.forkserver import serve; serve(int(sys.argv[2]))"
)


class ForkServer:
    """The driver's side. One serves all runs of a process."""

    _current: ForkServer | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # The thread pools of numerical libraries are sized when they are loaded; each worker sets its own later.
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the driver's to handle
        )
        theirs.close()
        self._channel = Channel(ours)
        self._owner = os.getpid()

    @classmethod
    def get(cls) -> ForkServer:
        """The server of this process, started when first needed (or when the last one died)."""
        with cls._lock:
            server = cls._current
            if server is None or server._owner != os.getpid() or server._process.poll() is not None:
                server = cls._current = cls()
                atexit.register(server.close)
            return server

    def fork(self, endpoint: socket.socket) -> int:
        """Fork a worker that talks through `endpoint`; return its process number."""
        try:
            return int(self._ask("fork", {}, [endpoint.fileno()])["pid"])
        except ChannelClosed:
            raise RunError("the fork server died; the next run will start a new one") from None

    def exit_status(self, pid: int) -> int | None:
        """How a worker that is ending does so, as `os.waitpid` tells it; None if the server does not know."""
        try:
            status: int | None = self._ask("reap", {"pid": pid}, [])["status"]
        except ChannelClosed:
            return None
        return status

    def _ask(self, word: str, values: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        with self._lock:
            if self._channel.fileno() < 0:
                raise ChannelClosed
            try:
                self._channel.send(word, values, fds=fds)
                return self._channel.receive().values
            except ChannelClosed:
                raise
            except BaseException:  # Ctrl-C, say: whoever asked next would read the rest of this answer
                self.close()
                raise

    def close(self) -> None:
        if self._owner == os.getpid():
            self._channel.close()
            self._process.wait()


def serve(fd: int) -> None:
    """The server's side: import what workers need, then fork on demand."""
    # Torch imports its compiler when the first optimizer is built, which takes as long again as torch itself.
    import torch._dynamo  # noqa: F401

    import paceline.clusters.worker as worker

    channel = Channel(socket.socket(fileno=fd))
    gc.collect()
    gc.freeze()  # or else the children's collector would touch, and so copy, every page
    try:
        while True:
            letter = channel.receive()
            if letter.word == "fork":
                channel.send("forked", {"pid": _fork(channel, letter.fds[0], worker.main)})
            else:
                channel.send("reaped", {"status": _reap(letter.values["pid"])})
    except ChannelClosed:
        os._exit(0)


def _fork(channel: Channel, fd: int, main: Callable[[Channel], None]) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        channel.close()
        _become_worker(server, fd, main)
    os.close(fd)
    return pid


def _reap(pid: int) -> int | None:
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def _become_worker(server: int, fd: int, main: Callable[[Channel], None]) -> NoReturn:
    # The worker must not outlive the server. If the server died before the signal was set, it is too late already.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    code = 1
    try:
        main(Channel(socket.socket(fileno=fd)))
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
