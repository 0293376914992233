"""Injects the fault of a case into a rank of a local run, from a thread of the driver."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from soak.cases import Case, Fault
from soak.processes import Process, find, ranks_of

_POLL_S = 0.002


class Injector:
    """Context manager around a run. The run must call `progress`."""

    def __init__(self, case: Case) -> None:
        self._fault = case.fault
        self._ranks = len(case.roles)
        self._before = {process.pid for process in ranks_of(os.getpid())}
        self._running = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.fired = False
        """Whether the rank was alive at the time of the fault."""
        self.outlasted = False
        """Whether a stop ended before the run ended."""

    def __enter__(self) -> Injector:
        if self._fault is not None:
            self._thread = threading.Thread(target=self._work, args=(self._fault,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def progress(self, _: object) -> None:
        self._running.set()

    def _work(self, fault: Fault) -> None:
        victim = self._wait_for_victim(fault)
        if victim is None or (fault.since == "running" and not self._wait_until_running()):
            return
        if self._over.wait(fault.after_s) or not _is_there(victim):
            return
        self.fired = True
        if fault.kind == "kill":
            _send(victim, signal.SIGKILL)
            return
        _send(victim, signal.SIGSTOP)
        self.outlasted = not self._over.wait(fault.seconds)
        _send(victim, signal.SIGCONT)

    def _wait_for_victim(self, fault: Fault) -> Process | None:
        while not self._over.wait(_POLL_S):
            ranks = [process for process in ranks_of(os.getpid()) if process.pid not in self._before]
            if len(ranks) == self._ranks:
                return ranks[fault.rank]
        return None

    def _wait_until_running(self) -> bool:
        while not self._running.wait(0.05):
            if self._over.is_set():
                return False
        return True


def _is_there(victim: Process) -> bool:
    now = find(victim.pid)
    return now is not None and now.start == victim.start and now.is_alive


def _send(victim: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if _is_there(victim):
            os.kill(victim.pid, number)
