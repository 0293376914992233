"""Processes of a script with its own training loop: started, watched and ended by `paceline run`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO

from paceline.clusters.process.offspring import dies_with_parent
from paceline.loop.settings import LoopSettings

INTERRUPTED = 130
_POLL_S = 0.05
GRACE_S = 15.0  # timeout for the other processes to end after one has failed
_INTERRUPT_S = 5.0  # timeout for processes to end after Ctrl-C
LINES = 200


class ScriptProcesses:
    """One process of a script for each rank. The context manager ends them all in every case.

    The first process writes to the terminal. The last lines of the others are shown if they fail.
    """

    def __init__(self, command: Sequence[str], ranks: int, settings: LoopSettings) -> None:
        self._command = list(command)
        self._ranks = ranks
        self._environment = {
            **os.environ,
            **settings.to_environment(),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: list[deque[str]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> ScriptProcesses:
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill)
            for rank in range(self._ranks):
                self._start(rank)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def _start(self, rank: int) -> None:
        parent = os.getpid()
        shown = None if rank == 0 else subprocess.PIPE
        process = subprocess.Popen(
            self._command,
            env={**self._environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=shown,
            stderr=None if rank == 0 else subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # this process receives Ctrl-C and passes it on once
            preexec_fn=lambda: None if dies_with_parent(parent) else os._exit(1),  # noqa: PLW1509
        )
        self._processes.append(process)
        lines: deque[str] = deque(maxlen=LINES)
        self._lines.append(lines)
        if process.stdout is not None:
            reader = threading.Thread(target=read_lines, args=(process.stdout, lines), daemon=True)
            reader.start()
            self._readers.append(reader)

    def wait(self) -> int:
        """Wait for the end of all processes. Return the exit code of the first that failed, or 0."""
        try:
            failed = self._wait_for_first_failure()
        except KeyboardInterrupt:
            self._signal(signal.SIGINT)
            self._wait_until(time.monotonic() + _INTERRUPT_S)
            return INTERRUPTED
        if failed is None:
            return 0
        self._wait_until(time.monotonic() + GRACE_S)
        self._show(failed)
        return exit_code(self._processes[failed].returncode)

    def _wait_for_first_failure(self) -> int | None:
        """Return the rank of the first process that has failed. None if all have ended well."""
        while True:
            codes = [process.poll() for process in self._processes]
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                return failed[0]
            if all(code == 0 for code in codes):
                return None
            time.sleep(_POLL_S)

    def _wait_until(self, until_s: float) -> None:
        while time.monotonic() < until_s and any(process.poll() is None for process in self._processes):
            time.sleep(_POLL_S)

    def _signal(self, signum: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signum)

    def _show(self, rank: int) -> None:
        """Print the last lines of a failed process, unless it has written to the terminal itself."""
        self._kill()
        for reader in self._readers:
            reader.join(_POLL_S)
        for line in self._lines[rank]:
            sys.stderr.write(f"[rank {rank}] {line}")

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()


def exit_code(code: int) -> int:
    """Return the exit code of a shell for a process that failed: 128 and the number of the signal that ended it."""
    return code if code > 0 else 128 - code


def read_lines(stream: IO[str], lines: deque[str]) -> None:
    with contextlib.suppress(ValueError, OSError):  # the pipe has been closed
        lines.extend(stream)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
